// The queues of one measurement: made and filled before it, gone after it.

import { randomUUID } from 'node:crypto'

import amqp from 'amqplib'
import { connect } from 'retryrmq'

import { BODY } from './measure.mjs'

/** What hangs from a work queue. */
const HANGING = ['', '.parked', ...[1000, 4000, 16_000, 64_000, 256_000].map((ms) => `.retry.${ms}`)]
/** Not a safe place before this age, in ms: retryrmq holds originals that long, and by hand nobody would know. */
const YOUNG = 2500

async function channel(url, use) {
  const connection = await amqp.connect(url)
  try {
    return await use(await connection.createChannel())
  } finally {
    await connection.close()
  }
}

/** A work queue of this kind with `count` messages, and what is needed around it; gone after `use`. */
export async function work(url, kind, { count = 0, waiting = false }, use) {
  const queue = `bench.${randomUUID().slice(0, 12)}`
  await channel(url, (made) => made.assertQueue(queue, { durable: true, arguments: { 'x-queue-type': kind } }))
  try {
    const rmq = await connect(url)
    // Whoever is measured finds what retryrmq makes, so that nobody has to make it within a measurement.
    await rmq.consume({ queue, dlx: true, ...(waiting ? { retry: 'fixed(1s)' } : {}) }, () => {})
    await rmq.close()
    if (waiting) await new Promise((resolve) => setTimeout(resolve, YOUNG))
    const filling = await connect(url)
    for (let left = count; left > 0; left -= 1000) {
      const some = Array.from({ length: Math.min(left, 1000) }, () => filling.publish(queue, BODY))
      await Promise.all(some)
    }
    await filling.close()
    return await use(queue)
  } finally {
    await channel(url, async (gone) => {
      for (const name of HANGING) await gone.deleteQueue(`${queue}${name}`)
    })
  }
}
