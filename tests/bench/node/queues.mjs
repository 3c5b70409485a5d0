// The queues of one measurement: made before it, filled before it or when there is a consumer, gone after it.

import { randomUUID } from 'node:crypto'

import amqp from 'amqplib'
import { connect } from 'retryrmq'

import { BODY } from './measure.mjs'

/** What hangs from a work queue. */
const DELAYS = [100, 1000, 2000, 4000, 8000, 16_000, 64_000, 256_000, 3_600_000]
const HANGING = ['', '.parked', ...DELAYS.map((ms) => `.retry.${ms}`)]
/**
 * In ms: a waiting queue is no safe place before it is older than two seconds, and a consumer does not know how old one is that
 * it finds. retryrmq holds originals that long once, and by hand nobody would know.
 */
const YOUNG = 3000

async function channel(url, use) {
  const connection = await amqp.connect(url)
  try {
    return await use(await connection.createChannel())
  } finally {
    await connection.close()
  }
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

/**
 * A work queue of this kind, and what is needed around it; gone after `use`. Messages that wait, wait by the policy `retry`; with the
 * strategy `native` in the work queue itself.
 */
export async function work(url, kind, { retry, strategy }, use) {
  const queue = `bench.${randomUUID().slice(0, 12)}`
  if (strategy !== 'native') {
    await channel(url, (made) => made.assertQueue(queue, { durable: true, arguments: { 'x-queue-type': kind } }))
  }
  try {
    const rmq = await connect(url)
    // Whoever is measured finds what retryrmq makes, so that nobody has to make it within a measurement.
    await rmq.consume({ queue, dlx: true, ...(retry && { retry }), ...(strategy && { strategy }) }, () => {})
    await rmq.close()
    return await use(queue)
  } finally {
    await channel(url, async (gone) => {
      for (const name of HANGING) await gone.deleteQueue(`${queue}${name}`)
    })
  }
}

/** Returns when `count` messages are stored. */
export async function fill(url, queue, count) {
  const filling = await connect(url)
  for (let left = count; left > 0; left -= 1000) {
    const some = Array.from({ length: Math.min(left, 1000) }, (_, at) => filling.publish(queue, BODY, { messageId: String(left - at) }))
    await Promise.all(some)
  }
  await filling.close()
}

/** Returns when somebody consumes from the queue, and what hangs from it is a safe place. */
export async function hasConsumer(url, queue) {
  await channel(url, async (looking) => {
    while ((await looking.checkQueue(queue)).consumerCount === 0) await sleep(20)
  })
  await sleep(YOUNG)
}

/** How many messages of a queue no client holds. */
export const ready = (url, queue) => channel(url, async (looking) => (await looking.checkQueue(queue)).messageCount)
