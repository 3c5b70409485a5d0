/** A client without a broker, for tests of what publishes and consumes. */

import { Client } from './client.js'
import type { Consumer } from './consumer.js'
import { timer } from './duration.js'
import { ClosedError, InvalidOptionError, InvalidTypeError, callNative, kind } from './errors.js'
import { type Message, messages } from './message.js'
import { type Middleware, type PublishMiddleware, functions } from './middleware.js'
import { type Client as NativeClient, type Connecting, type NotificationQueue, type Options, type Subscription, native } from './native.js'
import { dispatcher } from './notifications.js'
import { type BatchHandler, type BatchOptions, type ConsumerOptions, type Handler, type Plan, onlyKnown, plan } from './options.js'
import type { Body, PublishOptions } from './publish.js'
import { type Simulated, simulatePlanned } from './simulation.js'
import { clearTimeout } from './timers.js'

/** A message that was published through a {@link FakeClient}. */
export interface Published {
  /** The message, as a consumer would get it. No queue is known: its `queue` says nothing. */
  readonly message: Message
  /** Its `delay` in milliseconds; `undefined` without. */
  readonly delay: number | undefined
}

/** The options of a {@link FakeClient}; they are those of `connect`. */
export interface FakeOptions {
  /** Functions around every attempt. */
  middleware?: readonly Middleware[] | undefined
  /** Functions around every publish. */
  publishMiddleware?: readonly PublishMiddleware[] | undefined
}

/** What is delivered to a queue, as its consumers count it. */
type Counts = Map<string, number>

/** The counters of a subscription, as the native half names them. */
const COUNTERS = [
  'delivered',
  'acked',
  'failed',
  'retried',
  'deferred',
  'parked',
  'handed_over',
  'rejected',
  'detoured',
  'already_handled',
  'requeued',
  'unreadable',
  'stale',
  'publish_failures',
  'reconnects',
  'pauses',
  'outstanding',
]

/** The subscription of a fake client. Nothing arrives on it: its client delivers to the handler itself. */
class FakeSubscription implements Subscription {
  readonly #counts: Counts
  /** How long closing waits for running deliveries, in milliseconds. */
  readonly #drainTimeout: number
  /** How many deliveries run. */
  #running = 0
  #isClosed = false
  /** Closed, and no delivery runs, or nobody waits for those that do. */
  #hasEnded = false
  #draining: NodeJS.Timeout | undefined
  #waiting: number | undefined

  constructor(counts: Counts, drainTimeout: number) {
    this.#counts = counts
    this.#drainTimeout = drainTimeout
  }

  get isClosed(): boolean {
    return this.#isClosed
  }

  /** Runs a delivery, for which closing waits. */
  async during<T>(delivery: () => Promise<T>): Promise<T> {
    this.#running++
    try {
      return await delivery()
    } finally {
      if (--this.#running === 0 && this.#isClosed) this.#end()
    }
  }

  #end(): void {
    this.#hasEnded = true
    clearTimeout(this.#draining)
    if (this.#waiting !== undefined) dispatcher().answer(this.#waiting)
    this.#waiting = undefined
  }

  take(): null {
    return null
  }

  listen(): 'none' | 'ended' {
    return this.#isClosed ? 'ended' : 'none'
  }

  settle(): void {}

  giveBack(): void {}

  close(): void {
    if (this.#isClosed) return
    this.#isClosed = true
    if (this.#running === 0) this.#end()
    else this.#draining = timer(this.#drainTimeout, () => this.#end())
  }

  abandon(): void {
    this.#end()
  }

  waitClosed(_: unknown, ticket: number): void {
    if (this.#hasEnded) dispatcher().answer(ticket)
    else this.#waiting = ticket
  }

  stats(): [string, number][] {
    return COUNTERS.map((name) => [name, this.#counts.get(name) ?? 0])
  }
}

/** The native half of a fake client. */
class FakeNative implements NativeClient {
  readonly reconnects = 0
  readonly product = 'fake'
  readonly version = native.VERSION
  readonly published: Published[] = []
  readonly counts = new Map<string, Counts>()
  publishError: Error | undefined
  /** The queue that is being subscribed to. */
  subscribing = ''
  /** The subscription that was made last. */
  subscribed: FakeSubscription | undefined
  #isClosed = false

  subscribe(_: NotificationQueue, ticket: number, options: Options): Connecting {
    this.subscribed = new FakeSubscription(this.countsOf(this.subscribing), options.drainTimeout)
    dispatcher().answer(ticket, this.subscribed)
    return { giveUp: () => {} }
  }

  publish(_: unknown, ticket: number, message: Uint8Array): void {
    // A queue with this message alone, from which it comes as it would from a broker.
    const queue = callNative(() => new native.Simulation(new native.Options('{"queue": "published"}')))
    queue.publish(message) // refuses what a client refuses
    if (this.publishError !== undefined) throw this.publishError
    const batch = queue.next()
    if (batch === null) throw new Error('a published message did not arrive; please report this')
    const delay = queue.elapsed === 0 ? undefined : queue.elapsed
    this.published.push({ message: messages('published', batch)[0] as Message, delay })
    dispatcher().answer(ticket)
  }

  parked(): never {
    throw new ClosedError('`parked` needs a broker, and a fake client has none')
  }

  close(_: unknown, ticket: number): void {
    this.#isClosed = true
    dispatcher().answer(ticket)
  }

  metricsText(): string {
    return '# EOF\n'
  }

  trouble(): string | null {
    return this.#isClosed ? 'the client is closed; call connect() again' : (this.publishError?.message ?? null)
  }

  checkEnd(): void {}

  countsOf(queue: string): Counts {
    const counts = this.counts.get(queue) ?? new Map<string, number>()
    this.counts.set(queue, counts)
    return counts
  }
}

/** Only `connect` makes clients for programs. */
const Made = Client as unknown as new (...given: unknown[]) => Client

/**
 * A client without a broker, for tests: it keeps what is published, and delivers messages to handlers.
 *
 * It is a {@link Client}, so it fits wherever one is expected, and it refuses the same arguments with the same errors. What is published is
 * confirmed at once, whether or not such a queue exists, and reaches no handler:
 *
 *     const fake = new FakeClient()
 *     await acceptOrder(fake, order)
 *     assert.deepEqual(fake.published[0].message.json(), { id: 7 })
 *
 * Only {@link FakeClient.deliver} calls the handlers of its consumers. They emit no events, and there are no parked messages to browse.
 */
export class FakeClient extends Made {
  readonly #native: FakeNative
  readonly #middleware: readonly Middleware[]
  /** The consumers that have not ended. */
  readonly #running = new Map<Consumer, { planned: Plan; subscription: FakeSubscription }>()

  constructor(options: FakeOptions = {}) {
    if (typeof options !== 'object' || options === null) {
      throw new InvalidTypeError(`the options of a FakeClient must be an object, not ${kind(options)}`)
    }
    onlyKnown(options, ['middleware', 'publishMiddleware'])
    const middleware = functions('middleware', options.middleware)
    const publishMiddleware = functions('publishMiddleware', options.publishMiddleware)
    const own = new FakeNative()
    super(own, { credentials: undefined, middleware, publishMiddleware })
    this.#native = own
    this.#middleware = middleware
  }

  override consume<Body = unknown>(options: ConsumerOptions, handler: Handler<Body>): Promise<Consumer>
  override consume<Body = unknown>(options: BatchOptions, handler: BatchHandler<Body>): Promise<Consumer>
  override async consume(options: ConsumerOptions | BatchOptions, handler: Handler | BatchHandler): Promise<Consumer> {
    const planned = plan(options, handler, this.#middleware)
    this.#native.subscribing = planned.queue
    const consuming = super.consume(options as ConsumerOptions, handler as Handler)
    const subscription = this.#native.subscribed
    const consumer = await consuming
    if (subscription !== undefined) this.#running.set(consumer, { planned, subscription })
    const forget = (): void => void this.#running.delete(consumer)
    consumer.closed.then(forget, forget)
    return consumer
  }

  /** The published messages, in their order. May be cleared: `fake.published.length = 0`. */
  get published(): Published[] {
    return this.#native.published
  }

  /**
   * What every publish rejects with, such as `new UnreachableError('no broker')`; `undefined` if the broker confirms all. Meanwhile the client
   * is not healthy.
   */
  get publishError(): Error | undefined {
    return this.#native.publishError
  }

  set publishError(error: Error | undefined) {
    if (error !== undefined && !(error instanceof Error)) {
      throw new InvalidTypeError(`\`publishError\` must be an error or undefined, not ${kind(error)}`)
    }
    this.#native.publishError = error
  }

  /**
   * Runs the handler of `queue` on a message until the message has ended, with the real policy, and without waiting.
   *
   * It is {@link simulate} for one message: only the broker is simulated, and the clock jumps to the next attempt. The arguments are those of
   * `publish`. Rejects with {@link InvalidOptionError} if no consumer of the queue runs. Closing a consumer or the client waits for running
   * deliveries up to `drainTimeout`.
   */
  async deliver(queue: string, body: Body, options: PublishOptions = {}): Promise<Simulated> {
    const consumers = [...this.#running.values()].filter(({ subscription }) => !subscription.isClosed)
    const consumer = consumers.find(({ planned }) => planned.queue === queue)
    if (consumer === undefined) {
      const known = consumers.map(({ planned }) => planned.queue).join(', ') || 'none'
      throw new InvalidOptionError(`the fake client has no consumer of ${queue}; it has ${known}`)
    }
    return consumer.subscription.during(() => this.#deliver(consumer.planned, queue, body, options))
  }

  async #deliver(planned: Plan, queue: string, body: Body, options: PublishOptions): Promise<Simulated> {
    const result = await simulatePlanned(planned, [{ ...options, body }])
    const counts = this.#native.countsOf(queue)
    const count = (name: string): void => void counts.set(name, (counts.get(name) ?? 0) + 1)
    for (const { became } of result.attempts) {
      count('delivered')
      count(became)
      if (became !== 'acked' && became !== 'deferred') count('failed')
    }
    return result
  }
}
