// The measured programs by group and name; each takes the broker's address, the queue and how many messages.

import { amqplib, rabbitmqClient, rascal, retryrmq } from './clients.mjs'
import { BODY, Lateness, Meter } from './measure.mjs'

/** How copies are counted by hand. */
const COUNTED = 'x-retries'
/** The queue of the loops by hand, and of retryrmq, in which a message waits a second. */
const waiting = (queue) => `${queue}.retry.1000`

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
}

/**
 * Every message fails once, waits a second, and succeeds. The loops are what people write by hand who want to lose nothing:
 * a confirmed copy to a queue with a TTL that dead-letters back to the work queue, then the acknowledgement. Rascal's
 * republishing waits in the process.
 */
const retry = {
  'amqplib by hand'(url, queue, count) {
    const meter = new Meter(count)
    return amqplib(url, queue, async (message, ack, publish) => {
      meter.arrived()
      const { headers = {}, deliveryMode } = message.properties
      const done = COUNTED in headers
      if (!done) {
        const options = { headers: { ...headers, [COUNTED]: 1 }, deliveryMode }
        await publish(waiting(queue), message.content, options)
      }
      ack()
      if (done) meter.one()
    })
  },
  'rabbitmq-client by hand'(url, queue, count) {
    const meter = new Meter(count)
    return rabbitmqClient(url, queue, async (message, publish) => {
      meter.arrived()
      const headers = message.headers ?? {}
      if (COUNTED in headers) return meter.one()
      await publish(waiting(queue), message.body, { headers: { ...headers, [COUNTED]: 1 }, durable: true })
    })
  },
  'rascal republish'(url, queue, count) {
    const meter = new Meter(count)
    return rascal(url, queue, (message, content, ackOrNack) => {
      meter.arrived()
      if (message.properties.headers?.rascal?.recovery) {
        ackOrNack()
        return meter.one()
      }
      ackOrNack(new Error('the first time'), { strategy: 'republish', attempts: 5, defer: 1000 })
    })
  },
  retryrmq(url, queue, count) {
    const meter = new Meter(count)
    return retryrmq(url, queue, { retry: 'fixed(1s)' }, async (msg) => {
      meter.arrived()
      if (msg.attempt === 1) throw new Error('the first time')
      meter.one()
    })
  },
}

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
    const wait = began + n * 10 - performance.now()
    if (wait > 0) await sleep(wait)
    const body = Buffer.from(`${process.hrtime.bigint()} `.padEnd(BODY.length, 'x'))
    channel.sendToQueue(queue, body, { persistent: true })
  }
  await channel.waitForConfirms()
  await connection.close()
}

export const GROUPS = { consume, retry, latency }

// As a program: `cases.mjs GROUP NAME URL QUEUE COUNT` prints one line of JSON.
if (process.argv[1] === new URL(import.meta.url).pathname) {
  const [group, name, url, queue, count] = process.argv.slice(2)
  const program = name === 'publisher' ? publisher : GROUPS[group][name]
  await program(url, queue, Number(count))
}
