// Plays scenarios with the Node package: the driver contract of tests/scenarios/README.md.

import { createHash } from 'node:crypto'
import { readFileSync, writeSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

import { Decimal, RetryRmqError, connect, defer, park, retryAfter, setLogger } from 'retryrmq'

const CAN = [
  'error',
  'error_type',
  'fatal',
  'retry_after',
  'park',
  'defer',
  'panic',
  'exit',
  'rules',
  'handler_timeout',
  'pause',
  'declare',
  'queue_type',
  'prefetch_bytes',
  'crash_limit',
  'defer_limit',
  'no_park',
  'wrapped_park',
  'log',
  'mended',
  'whole_headers',
  'replay',
  'records',
  'publish',
  'events',
  'refused',
]

const BIGINT = /"\u0000(-?\d+)"/g

function plain(key, value) {
  const given = this[key]
  if (typeof given === 'bigint') return `\u0000${given}`
  if (Buffer.isBuffer(given)) return { $bytes: given.toString('base64') }
  if (given instanceof Date) return { $timestamp: seconds(given) }
  if (given instanceof Decimal) return { $decimal: { scale: given.scale, value: given.value } }
  return value
}

let over = false

function say(line, keys = {}) {
  if (over) return // whoever still logs
  over = line === 'done'
  const text = JSON.stringify({ line, ...keys }, plain).replaceAll('\\u0000', '\u0000')
  writeSync(1, `${text.replace(BIGINT, '$1')}\n`)
}

const seconds = (value) => (value instanceof Date ? Math.floor(value.getTime() / 1000) : value)
const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
const snaked = (object, of = (value) => value) =>
  Object.fromEntries(Object.entries(object).map(([name, value]) => [snake(name), of(value)]))

/** Which message of the scenario it is. */
const identity = (msg) => String(msg.headers['scenario-id'] ?? msg.messageId ?? '')

/** What the consumer's options call fatal. */
class Hopeless extends Error {}

/** Which step of which message comes next. */
class Script {
  constructor({ handler, runs }) {
    this.steps = new Map(Object.entries(handler))
    this.runs = new Map(Object.entries(runs))
  }

  begin(msg) {
    const id = identity(msg)
    const run = (this.runs.get(id) ?? 0) + 1
    this.runs.set(id, run)
    const steps = this.steps.get(id) ?? [{ do: 'ok' }]
    say('attempt', {
      id,
      run,
      at_ms: Date.now(),
      attempt: msg.attempt,
      retries: msg.retries,
      queue: msg.queue,
      exchange: msg.exchange,
      routing_key: msg.routingKey,
      message_id: msg.messageId ?? null,
      redelivered: msg.redelivered,
      last_error: msg.lastError ?? null,
      mended: msg.mended ?? null,
      first_failed_at_ms: msg.firstFailedAt?.getTime() ?? null,
      headers: msg.headers,
      properties: snaked(msg.properties, seconds),
      body_bytes: msg.body.length,
      body_sha256: createHash('sha256').update(msg.body).digest('hex'),
    })
    return { id, run, step: steps[Math.min(run, steps.length) - 1] }
  }

  end({ id, run, step }) {
    if (step.do === 'exit') process.kill(process.pid, 'SIGKILL')
    say('settled', { id, run, at_ms: Date.now() })
    switch (step.do) {
      case 'error':
        throw named(step.type, step.message)
      case 'fatal':
        throw new Hopeless(step.message)
      case 'retry_after':
        throw retryAfter(step.delay_ms, step.message)
      case 'park':
        throw step.within === undefined ? park(step.reason) : new Error(step.within, { cause: park(step.reason) })
      case 'defer':
        throw defer(step.delay_ms)
      case 'panic':
        throw Object.freeze({ message: step.message })
    }
  }
}

/** An error of a class with this name. */
function named(type, message) {
  const classes = { [type]: class extends Error {} }
  return type ? new classes[type](message) : new Error(message)
}

async function consume(order) {
  const { queue_type: queueType, handler_timeout_ms: handlerTimeout, pause, fatal, ...rest } = order.consume
  const camel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase())
  const options = Object.fromEntries(Object.entries(rest).map(([name, value]) => [camel(name), value]))
  if (handlerTimeout !== undefined) options.handlerTimeout = handlerTimeout
  if (pause) options.pause = { failures: pause.share, window: pause.window, duration: pause.for_ms }
  const script = new Script(order)
  const levels = ['error', 'warn', 'info', 'debug']
  setLogger(Object.fromEntries(levels.map((level) => [level, (text) => say('log', { level, text })])))
  try {
    const rmq = await connect(order.url, { queueType })
    await rmq.consume(
      {
        queue: order.queue,
        ...((fatal ?? order.consume.dlx) ? { fatal: [Hopeless] } : {}), // it needs retries
        onEvent: (event) => say('event', { kind: event.name, ...event }),
        ...options,
      },
      async (msg, ctx) => {
        const run = script.begin(msg)
        await sleep(run.step.sleep_ms ?? 0, undefined, { signal: ctx.signal })
        script.end(run)
      },
    )
    const running = rmq.run()
    say('ready')
    await running
    say('done')
  } catch (error) {
    if (!(error instanceof RetryRmqError)) throw error
    say('refused', { code: error.code, message: error.message })
    process.exit(0)
  }
}

async function replay(order) {
  const rmq = await connect(order.url)
  for await (const it of rmq.parked(order.queue)) {
    const { reason, byBroker, home, error, errorType, attempts } = it
    say('parked', { id: identity(it.message), reason, by_broker: byBroker, home, error, error_type: errorType, attempts })
    await it.replay()
  }
  await rmq.close()
}

async function publish(order) {
  const rmq = await connect(order.url)
  for (const { id, exchange, routing_key: routingKey, body, headers, delay_ms: delay } of order.messages) {
    const at = Date.now()
    await rmq.publish(routingKey, body, { exchange, headers, delay })
    say('published', { id, at_ms: at })
  }
  await rmq.close()
}

const order = JSON.parse(readFileSync(0, 'utf8'))
const tasks = { describe: () => say('driver', { name: 'node', can: CAN }), consume, replay, publish }
await tasks[order.task](order)
