// Publishing, and parked messages, on a real broker.

import assert from 'node:assert/strict'

import { connect, fixed } from 'retryrmq'

import { client, deferred, queue, test, until } from './broker.mjs'
import { at, freePort, proxy } from './network.mjs'

test('a message that no queue takes is refused, unless it is not mandatory', async (t) => {
  const rmq = await client(t)
  await assert.rejects(rmq.publish('node-nobody-has-this', 'x'), {
    name: 'UnroutableError',
    code: 'unroutable',
    message: /there is no queue `node-nobody-has-this`/,
  })
  await rmq.publish('node-nobody-has-this', 'x', { mandatory: false })
  // The broker closes the channel for this one.
  await assert.rejects(rmq.publish('orders', 'x', { exchange: 'node-nobody-has-this' }), {
    name: 'UnroutableError',
    code: 'unroutable',
    message: /node-nobody-has-this/,
  })
})

test('bad input rejects, and nothing throws at the call', async (t) => {
  const rmq = await client(t)
  await assert.rejects(rmq.publish(7, 'x'), { name: 'InvalidTypeError', message: /`routingKey`/ })
  await assert.rejects(rmq.publish('q', { a: 1 }), /JSON\.stringify/)
  await assert.rejects(rmq.publish('q', 'x', { delay: 'soon' }), { name: 'InvalidOptionError' })
  assert.throws(() => rmq.parked(7), /`queue` must be a string/)
  await assert.rejects(rmq.consume({ queue: 'q' }), /the handler must be a function/)
  await assert.rejects(rmq.consume({ queue: 'q', prefetch: 0 }, () => {}), RangeError)
  await assert.rejects(rmq.run('SIGTERM'), /`signals` must be an array/)
  for (const name of ['SIGFOO', 'SIGKILL', 9]) await assert.rejects(rmq.run([name]), RangeError)
})

test('a timeout and a signal end the wait, and a longer timeout waits longer', async (t) => {
  const [port, orders] = [await freePort(t), await queue(t)]
  const way = await proxy(t, port)
  const rmq = await connect(at(way.place))
  t.after(() => rmq.close())
  await assert.rejects(rmq.publish(orders, 'x', { signal: AbortSignal.abort(new Error('too late')) }), /too late/)
  await assert.rejects(rmq.publish(orders, 'x', { signal: {} }), /`signal` must be an AbortSignal/)
  way.close()
  let refused
  // Until the client knows that the connection for publishing is lost, not only the other one.
  await until('a message waits for a connection', async () => {
    refused = await rmq.publish(orders, 'x', { timeout: 300 }).catch((error) => error)
    return refused?.name !== 'ConnectionLostError'
  })
  assert.equal(refused.name, 'BrokerTimeoutError')
  assert.match(refused.message, /within its timeout of 300ms: there is no connection/)
  const gone = new AbortController()
  const waits = rmq.publish(orders, 'x', { timeout: '2m', signal: gone.signal })
  gone.abort()
  await assert.rejects(waits, { name: 'AbortError' })
  const late = rmq.publish(orders, 'late', { timeout: '2m' })
  // Longer than without a timeout.
  setTimeout(() => void proxy(t, port), 7_000)
  await late
})

test('many at once arrive in their order, also a large one and a late one', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const seen = []
  const consumer = await rmq.consume({ queue: orders, concurrency: 1 }, (msg) => void seen.push(msg.body))
  const delayed = rmq.publish(orders, 'late', { delay: 300 })
  const bodies = [...Array(300).keys()].map((n) => (n === 150 ? Buffer.alloc(3_000_000, 'x') : Buffer.from(`m${n}`)))
  await Promise.all(bodies.map((body) => rmq.publish(orders, body)))
  await delayed
  await until('all are there', () => consumer.stats().acked === 301)
  assert.deepEqual(
    seen.filter((body) => String(body) !== 'late').map((body) => body.length),
    bodies.map((body) => body.length),
  )
})

test('parked messages are seen, replayed, dropped, or left where they are', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  class Timeout extends Error {}
  const failing = await rmq.consume({ queue: orders, dlx: true, retry: fixed('50ms', { retries: 1 }) }, async (msg) => {
    throw new Timeout(`no answer to ${msg.text()}`, { cause: new TypeError('the wire') })
  })
  for (const name of ['replay', 'drop', 'keep']) await rmq.publish(orders, name, { headers: { big: 2n ** 60n } })
  await until('all are parked', () => failing.stats().parked === 3)
  await failing.close()

  let kept
  const seen = []
  for await (const it of rmq.parked(orders)) {
    kept = it
    seen.push(it.message.text())
    assert.deepEqual(
      [it.reason, it.errorType, it.error, it.attempts, it.byBroker],
      ['exhausted', 'Timeout', `no answer to ${it.message.text()}`, 2, false],
    )
    assert.match(it.stack, /Timeout|Error: no answer[^]*caused by: TypeError: the wire/)
    assert.match(it.fingerprint, /^[0-9a-f]{16}$/)
    assert.ok(it.parkedAt instanceof Date)
    assert.equal(it.message.headers.big, 2n ** 60n)
    if (it.message.text() === 'replay') await it.replay()
    if (it.message.text() === 'drop') await it.drop()
    if (it.message.text() === 'drop') await assert.rejects(it.drop(), { code: 'invalid_option' })
  }
  assert.deepEqual(seen.sort(), ['drop', 'keep', 'replay'])
  await assert.rejects(kept.replay(), { code: 'closed' })

  const left = []
  for await (const it of rmq.parked(orders)) {
    left.push(it.message.text())
    break
  }
  assert.deepEqual(left, ['keep'])
  const again = []
  const working = await rmq.consume({ queue: orders, dlx: true }, (msg) => void again.push([msg.text(), msg.replays]))
  await until('the replayed one is handled', () => working.stats().acked === 1)
  assert.deepEqual(again, [['replay', 1]])
  await until('the kept one is back in its place', async () => {
    for await (const it of rmq.parked(orders)) return it.message.text() === 'keep'
  })
})

test('parked messages of a queue that never parked any', async (t) => {
  const rmq = await client(t)
  await assert.rejects(
    (async () => {
      for await (const _ of rmq.parked('node-nobody-has-this')) assert.fail('there is none')
    })(),
    { code: 'queue_not_found' },
  )
})

test('closing waits for what was published', async (t) => {
  const orders = await queue(t)
  const closing = await client(t)
  const publishing = [...Array(50).keys()].map((n) => closing.publish(orders, String(n)))
  const closed = closing.close()
  await Promise.all(publishing)
  await closed
  const seen = new Set()
  const consumer = await (await client(t)).consume({ queue: orders }, (msg) => void seen.add(msg.text()))
  await until('all were stored', () => consumer.stats().acked === 50)
  assert.equal(seen.size, 50)
})

test('a handler may publish while its client closes', async (t) => {
  const [rmq, orders, results] = [await client(t), await queue(t), await queue(t)]
  const [begun, closing] = [deferred(), deferred()]
  await rmq.consume({ queue: orders }, async (msg) => {
    begun.resolve()
    await closing.promise
    await rmq.publish(results, `result of ${msg.text()}`)
  })
  await rmq.publish(orders, '1')
  await begun.promise
  const closed = rmq.close()
  closing.resolve()
  await closed
  const seen = deferred()
  await (await client(t)).consume({ queue: results }, (msg) => seen.resolve(msg.text()))
  assert.equal(await seen.promise, 'result of 1')
})

test('after closing there is nothing to be had', async (t) => {
  const rmq = await client(t)
  await Promise.all([rmq.close(), rmq.close()])
  await assert.rejects(rmq.publish('q', 'x'), { name: 'ClosedError', code: 'closed' })
  await assert.rejects(rmq.consume({ queue: 'q' }, () => {}), { code: 'closed' })
  await assert.rejects(rmq.run(), { code: 'closed' })
  await assert.rejects(rmq.parked('q')[Symbol.asyncIterator]().next(), { name: 'ClosedError', message: /client is closed/ })
  await assert.rejects(rmq.publish(7, 'x'), TypeError)
})

test('an error of the broker says who asked', async (t) => {
  const rmq = await client(t)
  async function whoAsked() {
    await rmq.publish('node-nobody-has-this', 'x')
  }
  const refused = await whoAsked().catch((error) => error)
  assert.match(refused.stack, /^UnroutableError: [^]*\n {4}at .*whoAsked/)
})
