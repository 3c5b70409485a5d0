// Everything that is let go is gone.

import assert from 'node:assert/strict'
import { test } from 'node:test'

import { connect, fixed } from 'retryrmq'
import { liveObjects } from 'retryrmq/testing'

import { URL_, cut, deferred, queue, until } from './broker.mjs'

/** Waits until nothing but the bridge of this environment is alive. */
async function allGone() {
  await until('everything native is gone', async () => {
    globalThis.gc()
    const { bridges, ...others } = liveObjects()
    return bridges <= 1 && Object.values(others).every((count) => count === 0)
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

test('a client that nobody holds and nobody closed goes as well, a consumer stays', async (t) => {
  const name = await queue(t)
  await connect(URL_)
  await allGone()
  let seen = deferred()
  let consumers = new WeakRef(await (await connect(URL_)).consume({ queue: name }, () => seen.resolve()))
  globalThis.gc()
  await new Promise((resolve) => setTimeout(resolve, 50))
  globalThis.gc()
  const rmq = await connect(URL_)
  await rmq.publish(name, 'x')
  await seen.promise
  await consumers.deref().close()
  await rmq.close()
  seen = consumers = undefined
  await allGone()
})

test('memory stays flat through failures and reconnects', async (t) => {
  const name = await queue(t)
  const rmq = await connect(URL_)
  const ledger = new Map()
  const options = { queue: name, dlx: true, retry: fixed('50ms', { retries: 5 }), prefetch: 200 }
  const consumer = await rmq.consume(options, async (msg) => {
    if (msg.attempt < 2) throw new Error(`attempt ${msg.attempt} of ${msg.text()}`)
    ledger.set(msg.messageId, (ledger.get(msg.messageId) ?? 0) + 1)
  })
  let number = 0
  const round = async () => {
    const publishing = []
    for (let n = 0; n < 500; n++) publishing.push(rmq.publish(name, 'x'.repeat(500), { messageId: `m${number++}` }))
    await Promise.all(publishing)
    await until('the round is handled', () => ledger.size === number)
  }
  const memory = () => {
    globalThis.gc()
    const { heapUsed, external } = process.memoryUsage()
    return heapUsed + external - number * 100 // the ledger itself
  }
  for (let n = 0; n < 3; n++) await round()
  const before = memory()
  for (let n = 0; n < 3; n++) {
    await round()
    await cut(name)
  }
  await round()
  const grown = memory() - before
  assert.ok(grown < 4_000_000, `grew by ${grown} bytes`)
  await consumer.close()
  assert.equal(ledger.size, number)
  await rmq.close()
  await allGone()
})
