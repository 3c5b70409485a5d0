// Everything that is let go is gone.

import assert from 'node:assert/strict'

import { connect, fixed } from 'retryrmq'
import { liveObjects } from 'retryrmq/testing'

import { URL_, cut, deferred, queue, test, until } from './broker.mjs'

/** Waits until nothing but the queue of notifications of this environment is alive. */
async function allGone() {
  await until('everything native is gone', async () => {
    globalThis.gc()
    const { notification_queues: queues, ...others } = liveObjects()
    return queues <= 1 && Object.values(others).every((count) => count === 0)
  }).catch(() => assert.fail(`alive: ${JSON.stringify(liveObjects())}`))
}

test('clients, consumers, walks and records are let go', async (t) => {
  const name = await queue(t)
  await (async () => {
    const rmq = await connect(URL_)
    const consumer = await rmq.consume({ queue: name, dlx: true, retry: fixed('50ms', { retries: 0 }) }, () => {
      throw new Error('no')
    })
    for (let n = 0; n < 20; n++) await rmq.publish(name, String(n))
    await until('all are parked', () => consumer.stats().parked === 20)
    for await (const it of rmq.parked(name)) if (Number(it.message.text()) > 10) break
    assert.ok(liveObjects().clients > 0)
    await rmq.close()
  })()
  await allGone()
})

test('a client that nobody holds and nobody closed goes as well', async () => {
  await connect(URL_)
  await allGone()
})

test('a consumer that nobody holds goes on', async (t) => {
  const name = await queue(t)
  const seen = deferred()
  const consuming = async () => {
    const consumer = await (await connect(URL_)).consume({ queue: name }, () => seen.resolve())
    return new WeakRef(consumer)
  }
  const consumer = await consuming()
  for (let round = 0; round < 5; round++) {
    globalThis.gc()
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  await (async () => {
    const rmq = await connect(URL_)
    await rmq.publish(name, 'x')
    await rmq.close()
  })()
  await seen.promise
  await consumer.deref().close()
  await allGone()
})

test('memory stays flat through failures and reconnects', async (t) => {
  const name = await queue(t)
  await load(name)
  await allGone()
})

async function load(name) {
  const rmq = await connect(URL_)
  const ledger = new Set()
  const options = { queue: name, dlx: true, retry: fixed('50ms', { retries: 5 }), prefetch: 200 }
  let again = 0
  const consumer = await rmq.consume(options, async (msg) => {
    if (msg.attempt < 2) throw new Error(`attempt ${msg.attempt} of ${msg.messageId}`)
    if (ledger.has(msg.messageId)) again++
    ledger.add(msg.messageId)
  })
  // Large, so that a leak of bodies shows beside what allocators keep: a round brings 20 MB in two deliveries of each.
  const body = 'x'.repeat(20_000)
  let number = 0
  const round = async () => {
    const publishing = []
    for (let n = 0; n < 500; n++) publishing.push(rmq.publish(name, body, { messageId: `m${number++}` }))
    await Promise.all(publishing)
    await until('the round is handled', () => ledger.size === number)
  }
  const memory = () => {
    globalThis.gc()
    const { heapUsed, external, rss } = process.memoryUsage()
    return { managed: heapUsed + external - number * 100, resident: rss } // without the ledger itself
  }
  for (let n = 0; n < 3; n++) await round()
  const before = memory()
  for (let n = 0; n < 3; n++) {
    await round()
    await cut(name)
  }
  await round()
  // What the native half holds shows in what is resident alone.
  let grown
  await until('memory is as it was', () => {
    const after = memory()
    grown = { managed: after.managed - before.managed, resident: after.resident - before.resident }
    return grown.managed < 4_000_000 && grown.resident < 50_000_000
  }).catch(() => assert.fail(`grew by ${JSON.stringify(grown)}`))
  assert.equal(ledger.size, number)
  assert.ok(again <= 3 * options.prefetch, `${again} messages were handled again after three reconnects`)
  await consumer.close()
  await rmq.close()
}
