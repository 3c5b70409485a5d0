// The client without a broker: what it keeps, whom it calls, and what it refuses as the real one does.

import assert from 'node:assert/strict'
import { test } from 'node:test'

import { Client, ClosedError, InvalidOptionError, InvalidPolicyError, InvalidTypeError, TooLargeError, UnreachableError, setLogger } from 'retryrmq'
import { FakeClient } from 'retryrmq/testing'

setLogger(false)
const orders = { queue: 'orders', dlx: true, retry: 'fixed(10s, retries=2)' }

test('it keeps what is published', async () => {
  const fake = new FakeClient()
  assert.ok(fake instanceof Client)
  await fake.publish('orders', '{"id": 7}', { headers: { tenant: 'a' }, messageId: 'm-7', priority: 3 })
  await fake.publish('created', Buffer.from([0]), { exchange: 'events', mandatory: false })
  await fake.publish('orders', 'later', { delay: '5m' })
  const [first, second, third] = fake.published
  assert.deepEqual([first.message.exchange, first.message.routingKey, first.message.json()], ['', 'orders', { id: 7 }])
  assert.deepEqual([first.message.headers, first.message.messageId, first.message.properties.priority], [{ tenant: 'a' }, 'm-7', 3])
  assert.deepEqual([second.message.exchange, [...second.message.body]], ['events', [0]])
  assert.deepEqual(fake.published.map(({ delay }) => delay), [undefined, undefined, 300_000])
  assert.equal(third.message.text(), 'later')
  await fake.close()
})

test('it refuses the arguments that a client refuses', async () => {
  const fake = new FakeClient()
  fake.publishError = new UnreachableError('no broker') // is not asked for
  for (const [error, ...args] of [
    [InvalidTypeError, 'orders', { id: 7 }],
    [InvalidTypeError, 7, 'x'],
    [InvalidTypeError, 'orders', 'x', { prioritty: 3 }],
    [InvalidOptionError, 'orders', 'x', { priority: 256 }],
    [InvalidOptionError, 'orders', 'x', { exchange: 'events', delay: '1s' }],
    [TooLargeError, 'q'.repeat(256), 'x'],
    [InvalidOptionError, 'orders', 'x', { messageId: 'x'.repeat(256) }],
    [InvalidTypeError, 'orders', 'x', { headers: { bad: () => {} } }],
  ]) {
    await assert.rejects(fake.publish(...args), (thrown) => {
      assert.ok(thrown instanceof error, `${thrown} is no ${error.name}`)
      return true
    })
  }
  await assert.rejects(fake.publish('orders', 'x'), UnreachableError)
  assert.equal(fake.trouble(), 'no broker')
  assert.deepEqual(fake.published, [])
  await assert.rejects(fake.consume({ queue: 'orders', retry: 'fixed(1s)' }, () => {}), /`retry` needs `dlx`/)
  await assert.rejects(fake.consume({ ...orders, retry: 'hope' }, () => {}), InvalidPolicyError)
  await assert.rejects(fake.consume(orders), InvalidTypeError)
  await fake.close()
})

test('a handler gets what is delivered with its real policy', async () => {
  const fake = new FakeClient()
  const consumer = await fake.consume(orders, async (msg) => {
    if (msg.attempt === 1) throw new Error('no answer')
    await fake.publish('shipped', msg.body, { delay: '1m' })
  })
  const { attempts, elapsed } = await fake.deliver('orders', '7', { headers: { tenant: 'a' } })
  assert.deepEqual(attempts.map(({ became }) => became), ['retried', 'acked'])
  assert.equal(attempts[1].message.headers.tenant, 'a')
  assert.equal(elapsed, 10_000)
  assert.deepEqual(fake.published.map(({ message }) => message.text()), ['7'])
  const { delivered, failed, retried, acked, outstanding } = consumer.stats()
  assert.deepEqual([delivered, failed, retried, acked, outstanding], [2, 1, 1, 1, 0])
  await consumer.close()
  await consumer.closed
  await assert.rejects(fake.deliver('orders', '7'), /no consumer of orders; it has none/)
  await assert.rejects(fake.deliver('orders', { id: 7 }), InvalidOptionError)
  await fake.close()
})

test('a handler of batches gets batches of one', async () => {
  const fake = new FakeClient()
  await fake.consume({ ...orders, batch: 10 }, (messages) => {
    assert.equal(messages.length, 1)
    throw new Error('no database')
  })
  const { parked } = await fake.deliver('orders', 'x')
  assert.equal(parked[0].reason, 'exhausted')
  await fake.close()
})

test('middleware surrounds publishes and attempts', async () => {
  const seen = []
  const around = (what) => (_, next) => {
    seen.push(what)
    return next()
  }
  const fake = new FakeClient({ middleware: [around('attempt')], publishMiddleware: [around('publish')] })
  await fake.consume(orders, () => fake.publish('done', ''))
  await fake.deliver('orders', 'x')
  assert.deepEqual(seen, ['attempt', 'publish'])
  assert.equal(fake.published.length, 1)
  await fake.close()
})

test('close ends its consumers, run and publishing', async () => {
  const fake = new FakeClient()
  const consumer = await fake.consume(orders, () => {})
  const stopped = await fake.consume({ ...orders, queue: 'others' }, () => {})
  stopped.stop()
  await stopped.closed
  const running = fake.run()
  assert.ok(fake.healthy())
  await fake.close()
  await Promise.all([running, consumer.closed])
  assert.ok(!fake.healthy())
  await assert.rejects(fake.publish('orders', 'x'), ClosedError)
  await assert.rejects(fake.consume(orders, () => {}), ClosedError)
})

/** A handler that publishes when it is let go. */
function held(fake) {
  let letGo, begin
  const goOn = new Promise((resolve) => (letGo = resolve))
  const begun = new Promise((resolve) => (begin = resolve))
  const handler = async (msg) => {
    begin()
    await goOn
    await fake.publish('shipped', msg.body)
  }
  return { handler, begun, letGo }
}

for (const [name, end] of [
  ['a consumer', (_, consumer) => consumer.close()],
  ['a client', (fake) => fake.close()],
]) {
  test(`closing ${name} waits for its running delivery`, async () => {
    const fake = new FakeClient()
    const { handler, begun, letGo } = held(fake)
    const consumer = await fake.consume(orders, handler)
    const delivery = fake.deliver('orders', '7')
    await begun
    let hasEnded = false
    const ending = end(fake, consumer).then(() => (hasEnded = true))
    for (let turn = 0; turn < 20; turn++) await new Promise(setImmediate)
    assert.ok(!hasEnded)
    await assert.rejects(fake.deliver('orders', '8'), /no consumer of orders; it has none/)
    letGo()
    await ending
    await consumer.closed
    assert.deepEqual([fake.published.length, consumer.stats().acked], [1, 1])
    assert.equal((await delivery).acked.length, 1)
    await fake.close()
  })
}

test('closing waits no longer than the drain timeout, and stop not at all', async () => {
  const fake = new FakeClient()
  for (const [drainTimeout, end] of [
    ['10ms', (consumer) => consumer.close()],
    ['1h', (consumer) => consumer.stop()],
  ]) {
    const { handler, begun, letGo } = held(fake)
    const consumer = await fake.consume({ ...orders, drainTimeout }, handler)
    let isDone = false
    const delivery = fake.deliver('orders', '7').finally(() => (isDone = true))
    await begun
    await end(consumer)
    await consumer.closed
    assert.ok(!isDone)
    letGo()
    await delivery
  }
  await fake.close()
})

test('a signal ends a consumer', async () => {
  const fake = new FakeClient()
  const controller = new AbortController()
  const consumer = await fake.consume({ ...orders, signal: controller.signal }, () => {})
  controller.abort()
  await consumer.closed
  await fake.close()
})

test('it says what it has not', async () => {
  const fake = new FakeClient()
  await assert.rejects(fake.parked('orders')[Symbol.asyncIterator]().next(), /needs a broker/)
  assert.throws(() => (fake.publishError = 'no'), InvalidTypeError)
  assert.throws(() => new FakeClient({ url: 'amqp://localhost' }), InvalidTypeError)
  assert.equal(fake.metricsText(), '# EOF\n')
  assert.equal(fake.server.product, 'fake')
  await fake.close()
})
