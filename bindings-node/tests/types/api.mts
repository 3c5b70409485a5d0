// What the types allow and refuse, as a strict project sees it.

import {
  Client,
  Consumer,
  Decimal,
  InvalidOptionError,
  Message,
  ParkedMessage,
  ParkedMessages,
  Policy,
  RetryRmqError,
  Rule,
  TooLargeError,
  connect,
  defer,
  exponential,
  list,
  park,
  retryAfter,
  rule,
  setLogger,
  typed,
  undecodable,
  type BatchHandler,
  type BatchOptions,
  type ConsumerOptions,
  type Credentials,
  type ErrorCode,
  type Event,
  type Handler,
  type Login,
  type Middleware,
  type PublishMiddleware,
  type Stats,
} from 'retryrmq'
import { metrics, trace } from '@opentelemetry/api'
import pino from 'pino'
import * as v from 'valibot'
import winston from 'winston'
import * as z from 'zod'
import { OpenTelemetry } from 'retryrmq/opentelemetry'
import { FakeClient, liveObjects, simulate, type Published, type Simulated } from 'retryrmq/testing'

abstract class Base extends Error {}
class NotFound extends Base {
  constructor(readonly id: number) {
    super(`no ${id}`)
  }
}

const handler: Handler = async (msg, ctx) => {
  const body: Buffer = msg.body
  const order = msg.json<{ id: number }>()
  const signal: AbortSignal = ctx.signal
  const id: string | undefined = msg.messageId
  const at: Date | undefined = msg.firstFailedAt
  if (body.length > order.id) throw retryAfter('5s', id)
  if (signal.aborted) throw park('late', { cause: at })
  throw defer(5000)
}

const options: ConsumerOptions = {
  queue: 'orders',
  dlx: true,
  retry: exponential('1s', { max: 60_000 }),
  strategy: 'retry-queues',
  rules: [rule({ error: Base, headers: { kind: 'x' } }, new Policy('fixed(1s)')), 'error=* => fixed(1s)'],
  fatal: [NotFound, SyntaxError],
  pause: { failures: 0.5, duration: '1m' },
  workQueue: { 'x-max-priority': 10, 'x-single-active-consumer': true, 'x-max-length': 10n, 'x-queue-mode': 'lazy' },
  reservedName: false,
  onEvent: (event: Event) => {
    if (event.name === 'parked') event.reason satisfies string
    if (event.name === 'login_refused') event.error satisfies string
    if (event.name === 'unreadable_moved') event satisfies { to: string; count: number; cause: string }
    if (event.name === 'consuming_stopped') event.error satisfies string
    // @ts-expect-error a consumer that reconnected has no message
    if (event.name === 'reconnected') void event.messageId
  },
}

// @ts-expect-error there is no such option
export const misspelt: ConsumerOptions = { queue: 'orders', prefetsch: 5 }
// @ts-expect-error there is no such strategy
export const hope: ConsumerOptions = { queue: 'orders', strategy: 'hope' }
// @ts-expect-error no queue is made a stream
export const stream: ConsumerOptions = { queue: 'orders', workQueue: 'stream' }
// @ts-expect-error the queue is required
export const none: ConsumerOptions = { dlx: true }

// @ts-expect-error a rule is made by rule()
export const numbered: ConsumerOptions = { queue: 'orders', rules: [7] }
// @ts-expect-error no predicate is a rule
export const predicate: ConsumerOptions = { queue: 'orders', rules: [() => true] }
// @ts-expect-error no pattern is a rule
export const pattern: ConsumerOptions = { queue: 'orders', rules: [/late/] }
// @ts-expect-error conditions alone are no rule
export const conditions: ConsumerOptions = { queue: 'orders', rules: [{ error: 'x' }] }

/** An option that is `undefined` is one that is not given, also with `exactOptionalPropertyTypes`. */
export const unset = (retries?: number, signal?: AbortSignal, replyTo?: string): unknown[] => [
  { queue: 'orders', retry: signal && 'fixed(1s)', prefetch: retries, onEvent: undefined, signal } satisfies ConsumerOptions,
  exponential('1s', { retries }),
  rule({ error: Base, routingKey: replyTo }, 'fixed(1s)'),
  connect(undefined, { appVersion: replyTo, signal }),
  { user: 'x', password: 'y', expiresIn: retries } satisfies Login,
  (rmq: Client) => rmq.publish('orders', 'x', { replyTo, priority: retries }),
]

export const bodies: Handler = (msg) => {
  msg.json() satisfies unknown
  msg.json<string>() satisfies string
  // @ts-expect-error the variable does not choose the type
  const text: string = msg.json()
  // @ts-expect-error nor does a parameter
  Number.parseInt(msg.json())
  return text
}

/** What is given, and never made. */
export const makers = (): unknown[] => [
  // @ts-expect-error by connect()
  new Client(),
  // @ts-expect-error by consume()
  new Consumer(),
  // @ts-expect-error for handlers
  new Message(),
  // @ts-expect-error by rule()
  new Rule(),
  // @ts-expect-error by parked()
  new ParkedMessages(),
  // @ts-expect-error by its loop
  new ParkedMessage(),
]

const timed: Middleware = async (msg, next, { signal }) => {
  signal.throwIfAborted()
  msg.attempt.toFixed()
  const value: unknown = await next()
  return value ?? next(msg)
}
const stamped: PublishMiddleware = async (publish, next) => {
  publish.headers['x-request-id'] = publish.routingKey
  publish.messageId = `${publish.exchange} ${publish.messageId}`
  // @ts-expect-error the body is as it was given
  publish.body = ''
  await next(publish)
}
const telemetry = new OpenTelemetry({ tracerProvider: trace.getTracerProvider(), meterProvider: metrics.getMeterProvider() })
export const around = (): unknown[] => [
  connect(undefined, { middleware: [telemetry.consume], publishMiddleware: [telemetry.publish] }),
  connect(undefined, { middleware: [timed], publishMiddleware: [stamped] }),
  { queue: 'orders', middleware: [timed, (_, next) => next()] } satisfies ConsumerOptions,
  // @ts-expect-error a list
  { queue: 'orders', middleware: timed } satisfies ConsumerOptions,
  // @ts-expect-error the two kinds are not the same
  connect(undefined, { publishMiddleware: [timed] }),
]

const Order = z.object({ id: z.string().transform(Number), note: z.string().optional() })
export const validated: Handler[] = [
  typed(Order, async (order, msg, { signal }) => {
    order satisfies { id: number; note?: string | undefined }
    if (signal.aborted) throw undecodable(msg.text())
    // @ts-expect-error an order has no total
    void order.total
  }),
  typed(v.object({ id: v.number() }), ({ id }) => id.toFixed(), { invalidBody: 'retry' }),
  // @ts-expect-error there is no such choice
  typed(Order, () => {}, { invalidBody: 'drop' }),
  // @ts-expect-error a type is no schema
  typed({} as { id: number }, () => {}),
]

const login: Login = { user: 'x', password: 'y', expiresIn: '5m' }
export const credentials: Credentials[] = [
  () => login,
  async () => ({ ...login, expiresIn: 60_000 }),
  async ({ signal }) => (signal.throwIfAborted(), login),
]
// @ts-expect-error a login has a password
export const anonymous: Credentials = () => ({ user: 'x' })

export async function use(): Promise<Stats> {
  await using rmq: Client = await connect('amqp://localhost', { appVersion: '1', queueType: 'classic' })
  await using orders: Consumer = await rmq.consume(options, handler)
  orders.on('retried', ({ delay, messageId }) => void [delay.toFixed(), messageId?.length])
  orders.unref().ref() satisfies Consumer
  orders.once('paused', (event) => event.delay.toFixed())
  const several: readonly string[] = ['amqp://one', 'amqp://two']
  const other: Client = await connect(several, { wait: true, endWhenRefused: true, credentials: async () => login })
  type Order = { id: number }
  const own: Handler<Order> = (msg) => void (msg.json().id satisfies number)
  await other.consume<Order>({ queue: 'orders' }, (msg) => void (msg.json().id satisfies number))
  // @ts-expect-error an order has an id and nothing else
  await other.consume<Order>({ queue: 'orders' }, (msg) => void msg.json().total)
  await other.consume(options, own)
  await other.consume(options, typed(v.string(), (name) => name.length))
  await simulate(options, own, ['{"id":7}'])
  await other.consume<Order>({ queue: 'orders', batch: 100, batchWait: '1s' }, async (messages, { signal }) => {
    signal.throwIfAborted()
    return Promise.allSettled(messages.map((msg) => msg.json().id satisfies number))
  })
  const all: BatchHandler = (messages) => messages.map((msg) => (msg.attempt > 3 ? park('no') : undefined))
  const batches: BatchOptions = { queue: 'orders', batch: 100 }
  await other.consume(batches, telemetry.batch(all))
  await simulate(batches, all, ['x'])
  // @ts-expect-error a handler of batches needs them
  await other.consume({ queue: 'orders' }, all)
  // @ts-expect-error a handler of single messages
  await other.consume(batches, handler)
  // @ts-expect-error middleware is around single messages
  await other.consume({ queue: 'orders', batch: 2, middleware: [timed] }, all)
  if (!other.healthy()) other.trouble() satisfies string | null
  await rmq.publish('orders', new Uint8Array(2), { headers: { n: 5n, d: new Decimal(1, 2), deep: { list: [null] } } })
  // @ts-expect-error a body is bytes or text
  await rmq.publish('orders', { a: 1 })
  const parked: ParkedMessages = rmq.parked('orders')
  for await (const it of parked) {
    if (it.home !== 'orders') await it.replayTo(it.home satisfies string)
    else if (it.errorType === 'X' && it.mark !== '') await it.replay()
  }
  void [parked.remaining + parked.others + parked.missed, parked.warning?.length]
  const simulated: Simulated = await simulate(options, handler, ['x', { body: 'y', messageId: '7' }])
  const { clients = 0 } = liveObjects()
  setLogger(console)
  setLogger(console, { fields: 'last' })
  setLogger(pino())
  setLogger(pino(), { fields: 'first' })
  setLogger(winston.createLogger(), { fields: 'last' })
  setLogger(false)
  // @ts-expect-error a place that there is
  setLogger(console, { fields: 'middle' })
  list(['1s', 5000], { retries: clients + simulated.elapsed })
  return orders.stats()
}

export function told(error: unknown): string {
  if (error instanceof TooLargeError) return (error satisfies RangeError).code satisfies 'too_large'
  if (error instanceof InvalidOptionError) return error.code satisfies 'invalid_option'
  if (error instanceof RetryRmqError && error.code === 'unroutable') return 'nobody'
  // @ts-expect-error there is no such code
  if (error instanceof RetryRmqError && error.code === 'unrootable') return 'nobody'
  return error instanceof RetryRmqError ? (error.code satisfies ErrorCode) : 'unknown'
}

async function faked(service: (rmq: Client) => Promise<void>): Promise<Simulated> {
  const fake = new FakeClient({ middleware: [(_, next) => next()] })
  await service(fake)
  const first: Published | undefined = fake.published[0]
  const delay: number | undefined = first?.delay
  fake.publishError = delay === undefined ? undefined : new TooLargeError('no')
  await fake.consume<{ id: number }>({ queue: 'orders' }, (msg) => void msg.json().id.toFixed())
  // @ts-expect-error: no such option
  new FakeClient({ url: 'amqp://localhost' })
  return fake.deliver('orders', '{}', { headers: { a: 1 } })
}
void faked
