// The measured programs by group and name; each takes the broker's address, the queue and how many messages.

import { amqplib, rabbitmqClient, rascal, retryrmq } from './clients.mjs'
import { Failing, Outage, PER_SECOND } from './load.mjs'
import { BODY, Lateness, Meter } from './measure.mjs'

/** How copies are counted by hand. */
const COUNTED = 'x-retries'

/** Consume and acknowledge a full queue with a handler that does nothing. */
const consume = {
  amqplib(url, queue, count) {
    const meter = new Meter(count)
    return amqplib(url, queue, (_, ack) => {
      ack()
      meter.one()
    })
  },
  'rabbitmq-client'(url, queue, count) {
    const meter = new Meter(count)
    return rabbitmqClient(url, queue, async () => meter.one())
  },
  rascal(url, queue, count) {
    const meter = new Meter(count)
    return rascal(url, queue, (message, content, ackOrNack) => {
      ackOrNack()
      meter.one()
    })
  },
  'retryrmq sync'(url, queue, count) {
    const meter = new Meter(count)
    return retryrmq(url, queue, {}, () => meter.one())
  },
  'retryrmq async'(url, queue, count) {
    const meter = new Meter(count)
    return retryrmq(url, queue, {}, async () => meter.one())
  },
  // These two with as many messages in hand as 16 batches need.
  'retryrmq async, 1600'(url, queue, count) {
    const meter = new Meter(count)
    return retryrmq(url, queue, { prefetch: 1600 }, async () => meter.one())
  },
  'retryrmq batch, 1600'(url, queue, count) {
    const meter = new Meter(count)
    return retryrmq(url, queue, { batch: 100, prefetch: 1600 }, async (messages) => messages.forEach(() => meter.one()))
  },
}

/** What every handler does: like any other it fails by throwing, and making an error is work, whoever catches it. */
async function attempt(load, failed) {
  if (load.fails(failed)) throw new Error('not yet')
  load.done()
}

/**
 * Each message fails once or more often, waits each time, and succeeds. The loops are what people write by hand who want to lose
 * nothing: a confirmed copy to a queue with a TTL that dead-letters back to the work queue, then the acknowledgement. Rascal's
 * republishing waits in the process.
 */
const loops = {
  'amqplib by hand': (url, queue, load) =>
    amqplib(
      url,
      queue,
      async (message, ack, publish) => {
        const { headers = {}, deliveryMode } = message.properties
        const failed = headers[COUNTED] ?? 0
        try {
          await attempt(load, failed)
        } catch {
          await publish(load.place(queue, failed), message.content, { headers: { [COUNTED]: failed + 1 }, deliveryMode })
        }
        ack()
      },
      load.outstanding,
    ),
  'rabbitmq-client by hand': (url, queue, load) =>
    rabbitmqClient(
      url,
      queue,
      async (message, publish) => {
        const failed = message.headers?.[COUNTED] ?? 0
        try {
          await attempt(load, failed)
        } catch {
          await publish(load.place(queue, failed), message.body, { headers: { [COUNTED]: failed + 1 }, durable: true })
        }
      },
      load.outstanding,
    ),
  'rascal republish': (url, queue, load) =>
    rascal(
      url,
      queue,
      (message, content, ackOrNack) => {
        if (load.fails(message.properties.headers?.rascal?.recovery?.[queue]?.republished ?? 0)) {
          return ackOrNack(new Error('not yet'), { strategy: 'republish', attempts: 5, defer: load.delay })
        }
        ackOrNack()
        load.done()
      },
      load.outstanding,
    ),
  retryrmq: (url, queue, load) => ours(url, queue, load),
}

function ours(url, queue, load, options) {
  const how = { retry: load.retry, prefetch: load.outstanding, ...options }
  return retryrmq(url, queue, how, (msg) => attempt(load, msg.attempt - 1))
}

/** Publishes no copies: `giveBack(channel, message)` for what fails. `failed` is told the properties of a message. */
const withoutCopies = (url, queue, load, failed, giveBack) =>
  amqplib(
    url,
    queue,
    async (message, ack, _, channel) => {
      try {
        await attempt(load, failed(message.properties))
      } catch {
        return giveBack(channel, message)
      }
      ack()
    },
    load.outstanding,
  )

const requeue = (channel, message) => channel.nack(message, false, true)

/** Everything in a queue fails at once, five times each. */
const storm = {
  /** Given back at once; how often a message has failed is known to this process alone. */
  'amqplib requeue'(url, queue, load) {
    const failures = new Map()
    const failed = ({ messageId }) => {
      const before = failures.get(messageId) ?? 0
      failures.set(messageId, before + 1)
      return before
    }
    return withoutCopies(url, queue, load, failed, requeue)
  },
  /** The client only rejects; the queue keeps the message for a second and counts. */
  'amqplib delayed retry': (url, queue, load) =>
    withoutCopies(
      url,
      queue,
      load,
      ({ headers }) => headers?.['x-delivery-count'] ?? 0,
      (channel, message) => channel.reject(message, true),
    ),
  ...loops,
  'retryrmq, native': (url, queue, load) => ours(url, queue, load, { strategy: 'native' }),
}
/** Those on a queue that delays what is rejected, as the strategy `native` makes it. */
export const NATIVE = ['amqplib delayed retry', 'retryrmq, native']

/** All attempts fail while a dependency is away. */
const outage = {
  'amqplib requeue': (url, queue, load) => withoutCopies(url, queue, load, () => 0, requeue),
  'amqplib by hand': loops['amqplib by hand'],
  retryrmq: loops.retryrmq,
  'retryrmq, pause': (url, queue, load) => ours(url, queue, load, { pause: true }),
}

/** Each message fails once and waits for an hour. What Rascal lets wait it holds, so that it must be allowed to hold all. */
const HOUR = 3_600_000
const memory = {
  'rascal republish': (url, queue, count) => loops['rascal republish'](url, queue, new Failing(count, { delay: HOUR, outstanding: count })),
  retryrmq: (url, queue, count) => loops.retryrmq(url, queue, new Failing(count, { delay: HOUR })),
}

/** The measured programs, each with a load of its own. */
const asked = (programs, load) =>
  Object.fromEntries(Object.entries(programs).map(([name, run]) => [name, (url, queue, count) => run(url, queue, load(count))]))

/** How long one message is under way, from a publisher in a process of its own to the handler, at 100 messages a second. */
const latency = {
  amqplib(url, queue, count) {
    const lateness = new Lateness(count)
    return amqplib(url, queue, (message, ack) => {
      lateness.one(message.content)
      ack()
    })
  },
  'rabbitmq-client'(url, queue, count) {
    const lateness = new Lateness(count)
    return rabbitmqClient(url, queue, async (message) => lateness.one(message.body))
  },
  retryrmq(url, queue, count) {
    const lateness = new Lateness(count)
    return retryrmq(url, queue, {}, async (msg) => lateness.one(msg.body))
  },
}

/** Begins when somebody consumes, and keeps to the clock. */
export async function publisher(url, queue, count) {
  const { connect } = await import('amqplib')
  const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
  const connection = await connect(url)
  const channel = await connection.createConfirmChannel()
  while ((await channel.checkQueue(queue)).consumerCount === 0) await sleep(20)
  const began = performance.now()
  for (let n = 0; n < count; n++) {
    const wait = began + (n * 1000) / PER_SECOND - performance.now()
    if (wait > 0) await sleep(wait)
    const body = Buffer.from(`${process.hrtime.bigint()} `.padEnd(BODY.length, 'x'))
    channel.sendToQueue(queue, body, { persistent: true })
  }
  await channel.waitForConfirms()
  await connection.close()
}

export const GROUPS = {
  consume,
  retry: asked(loops, (count) => new Failing(count)),
  latency,
  storm: asked(storm, (count) => new Failing(count, { failures: 5, outstanding: 1000 })),
  outage: asked(outage, (count) => new Outage(count)),
  memory,
}

// As a program: `cases.mjs GROUP NAME URL QUEUE COUNT` prints one line of JSON.
if (process.argv[1] === new URL(import.meta.url).pathname) {
  const [group, name, url, queue, count] = process.argv.slice(2)
  const program = name === 'publisher' ? publisher : GROUPS[group][name]
  // What is garbage is nobody's memory.
  if (group === 'memory') setInterval(globalThis.gc, 500)
  await program(url, queue, Number(count))
}
