// Who is told of what, and where.

import assert from 'node:assert/strict'
import { AsyncLocalStorage } from 'node:async_hooks'
import { once } from 'node:events'
import { createRequire } from 'node:module'
import path from 'node:path'

import { fixed, setLogger } from 'retryrmq'

import { client, program, queue, test, until } from './broker.mjs'

const require = createRequire(import.meta.url)
const { native } = require(path.join(path.dirname(require.resolve('retryrmq')), 'native.js'))

const fail = () => {
  throw new Error('never')
}

/** A queue with a message that was parked and replayed. */
async function replayed(t, rmq) {
  const orders = await queue(t)
  const failing = await rmq.consume({ queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }) }, fail)
  await rmq.publish(orders, 'x', { messageId: 'it' })
  await until('it is parked', () => failing.stats().parked === 1)
  await failing.close()
  for await (const it of rmq.parked(orders)) await it.replay()
  return orders
}

test('what happens before the consumer is there is told', async (t) => {
  const rmq = await client(t)
  const orders = await replayed(t, rmq)
  const told = []
  const onEvent = (event) => told.push([event.name, event.messageId, consumer?.queue])
  const consuming = rmq.consume({ queue: orders, dlx: true, onEvent }, () => {})
  // Nothing is read until there is something to tell as well.
  for (const end = Date.now() + 500; Date.now() < end; );
  const consumer = await consuming
  consumer.on('replayed', () => told.push('by name'))
  await until('it was handled', () => consumer.stats().acked === 1)
  await until('all are told', () => told.length === 2)
  assert.deepEqual(told, [['replayed', 'it', orders], 'by name'])
})

test('an event that cannot be read is logged, and ends nothing', async (t) => {
  const rmq = await client(t)
  const orders = await replayed(t, rmq)
  const lines = []
  const quiet = () => {}
  setLogger({ error: (line) => lines.push(line), warn: quiet, info: quiet, debug: quiet })
  t.after(() => setLogger(false))
  const { fetch } = native.NotificationQueue.prototype
  native.NotificationQueue.prototype.fetch = function () {
    const { events, ...others } = fetch.call(this)
    return { ...others, events: events?.map(([whose, row]) => [whose, row.slice(0, -1)]) }
  }
  t.after(() => (native.NotificationQueue.prototype.fetch = fetch))
  const consuming = rmq.consume({ queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }), onEvent: fail }, (msg) => {
    if (msg.text() === 'bad') fail()
  })
  // As above: one event comes before the consumer.
  for (const end = Date.now() + 500; Date.now() < end; );
  const consumer = await consuming
  await until('it was handled', () => consumer.stats().acked === 1)
  await rmq.publish(orders, 'bad')
  await until('another one is parked', () => consumer.stats().parked === 2)
  await until('both are logged', () => lines.length === 2)
  assert.match(lines[0], /^retryrmq: an event could not be decoded: SyntaxError: .*"name":"replayed"/s)
  assert.match(lines[1], /^retryrmq: an event could not be decoded: SyntaxError: .*"name":"parked"/s)
})

test('who listens after all others were removed is told', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const consumer = await rmq.consume({ queue: orders }, fail)
  consumer.removeAllListeners()
  assert.throws(() => consumer.on('parkt', () => {}), TypeError)
  const rejected = once(consumer, 'rejected')
  await rmq.publish(orders, 'x', { messageId: 'it' })
  assert.equal((await rejected)[0].messageId, 'it')
})

for (const method of ['on', 'addListener', 'once', 'prependListener', 'prependOnceListener']) {
  test(`a listener that came by ${method} is told`, async (t) => {
    const [rmq, orders] = [await client(t), await queue(t)]
    const consumer = await rmq.consume({ queue: orders }, fail)
    const told = []
    assert.equal(consumer[method]('rejected', (event) => told.push(event.name)), consumer)
    await rmq.publish(orders, 'x')
    await until('it is told', () => told.length === 1)
  })
}

test('listeners run in the asynchronous context of consume', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const storage = new AsyncLocalStorage()
  const seen = []
  const onEvent = (event) => seen.push([event.name, storage.getStore()])
  const consumer = await storage.run('mine', () => rmq.consume({ queue: orders, onEvent }, fail))
  consumer.on('rejected', () => seen.push(['listener', storage.getStore()]))
  await storage.run('elsewhere', () => rmq.publish(orders, 'x'))
  await until('both are told', () => seen.length === 2)
  assert.deepEqual(seen, [
    ['rejected', 'mine'],
    ['listener', 'mine'],
  ])
})

test('the context of who connected first is not kept', async () => {
  const { code, text, errors } = await program('async_context', [])
  assert.deepEqual([code, errors, text], [0, '', 'gone\n'])
})

test('events that nobody fetches are dropped and counted', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const lines = []
  const quiet = () => {}
  setLogger({ error: quiet, warn: (line) => lines.push(line), info: quiet, debug: quiet })
  t.after(() => setLogger(false))
  const total = 11_000
  let told = 0
  let handled = 0
  const options = { queue: orders, prefetch: 65_535, concurrency: 20_000, onEvent: () => told++ }
  const held = []
  const consumer = await rmq.consume(options, () => {
    handled++
    return new Promise((_, reject) => held.push(reject))
  })
  const publishing = []
  for (let n = 0; n < total; n++) publishing.push(rmq.publish(orders, 'x'))
  await Promise.all(publishing)
  await until('all are held', () => handled === total)
  const error = new Error('no')
  for (const reject of held) reject(error)
  // The handlers' ends are read without a turn of the event loop, in which events would be fetched.
  for (let n = 0; n < 10; n++) await null
  for (const deadline = Date.now() + 120_000; consumer.stats().rejected < 10_100 && Date.now() < deadline; );
  assert.ok(consumer.stats().rejected >= 10_100, `${consumer.stats().rejected} are rejected`)
  // Some may be dropped before the first look, and others after it: each look says how many.
  const dropped = () =>
    lines.reduce((sum, line) => sum + Number(/(\d+) events were dropped/.exec(line)?.[1] ?? 0), 0)
  await until('each is told or said to be dropped', () => told + dropped() >= total)
  assert.ok(dropped() > 0)
  assert.equal(told + dropped(), total)
})
