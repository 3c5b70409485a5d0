// Handlers that get several messages at once.

import assert from 'node:assert/strict'

import { defer, fixed, park, retryAfter, setLogger } from 'retryrmq'
import { simulate } from 'retryrmq/testing'

import { client, deferred, queue, test, until } from './broker.mjs'

const publish = (rmq, orders, bodies) => Promise.all(bodies.map((body) => rmq.publish(orders, body, { messageId: body })))
const numbers = (count) => Array.from({ length: count }, (_, number) => String(number))
const ids = (messages) => messages.map((message) => message.messageId)

test('a handler gets complete batches, and an incomplete one after its time', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  await publish(rmq, orders, numbers(10))
  const batches = []
  const options = { queue: orders, dlx: true, batch: 4, batchWait: '500ms', concurrency: 1 }
  const consumer = await rmq.consume(options, async (messages, { signal }) => {
    assert.equal(signal.aborted, false)
    batches.push(ids(messages))
  })
  await until('all are handled', () => consumer.stats().acked === 10)
  assert.deepEqual(batches.flat(), numbers(10))
  assert.ok(batches.every((batch) => batch.length <= 4))
  assert.ok(batches.length < 10, 'some came together')
  await consumer.close()

  const others = []
  const atOnce = await rmq.consume({ ...options, batchWait: 0 }, (messages) => void others.push(...ids(messages)))
  await publish(rmq, orders, ['a'])
  await until('it is handled', () => others.length === 1)
  await atOnce.close()
})

test('an error fails all messages of a batch, and each counts its own attempts', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  await publish(rmq, orders, numbers(6))
  const attempts = new Map()
  const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 1 }), batch: 6, batchWait: '100ms' }
  const consumer = await rmq.consume(options, (messages) => {
    for (const { messageId, attempt } of messages) attempts.set(messageId, [...(attempts.get(messageId) ?? []), attempt])
    throw new RangeError('the database is away')
  })
  await until('all are parked', () => consumer.stats().parked === 6)
  for (const id of numbers(6)) assert.deepEqual(attempts.get(id), [1, 2])
  const parked = []
  for await (const it of rmq.parked(orders)) {
    parked.push(it.message.messageId)
    assert.deepEqual([it.reason, it.errorType, it.error, it.attempts], ['exhausted', 'RangeError', 'the database is away', 2])
    assert.match(it.stack, /^RangeError: the database is away\n {4}at /)
    await it.drop()
  }
  assert.deepEqual(parked.sort(), numbers(6))
})

test('an array has one answer for each message', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const ends = {
    ok: () => undefined,
    number: () => 7,
    error: () => new RangeError('no answer'),
    parked: () => park('ask the customer'),
    later: (attempt, deferrals) => (deferrals === 0 ? defer('50ms') : undefined),
    again: (attempt) => (attempt === 1 ? retryAfter('50ms', 'busy') : undefined),
    refused: () => ({ id: 7, status: 'rejected' }),
    lazy: () => async () => {},
  }
  const seen = new Map()
  const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 1 }), batch: 8, batchWait: '50ms' }
  const consumer = await rmq.consume(options, async (messages) =>
    messages.map(({ messageId, attempt }) => {
      const before = seen.get(messageId) ?? 0
      seen.set(messageId, before + 1)
      return ends[messageId](attempt, before)
    }),
  )
  await publish(rmq, orders, Object.keys(ends))
  await until('all have ended', () => consumer.stats().acked + consumer.stats().parked === 8)
  const parked = {}
  for await (const it of rmq.parked(orders)) {
    parked[it.message.messageId] = [it.reason, it.errorType, it.error, it.attempts]
    await it.drop()
  }
  assert.deepEqual(parked, {
    error: ['exhausted', 'RangeError', 'no answer', 2],
    parked: ['requested', '', 'ask the customer', 1],
    lazy: ['exhausted', 'TypeError', 'the handler returned a function, which nobody calls; call it before returning', 2],
  })
  assert.deepEqual(Object.fromEntries(seen), { ok: 1, number: 1, error: 2, parked: 1, later: 2, again: 2, refused: 1, lazy: 2 })
})

test('the results of Promise.allSettled are answers, with the signals in them', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const ends = {
    ok: async () => 7,
    rejected: () => Promise.reject(new TypeError('no price')),
    signalled: async () => park('ask the customer'),
    value: async () => new Error('only a value'),
    status: async () => ({ status: 'rejected', reason: 'of a bank' }),
  }
  const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }), batch: 5, batchWait: '1m', concurrency: 1 }
  const consumer = await rmq.consume(options, (messages) => Promise.allSettled(messages.map(({ messageId }) => ends[messageId]())))
  await publish(rmq, orders, Object.keys(ends))
  await until('all have ended', () => consumer.stats().acked + consumer.stats().parked === 5)
  const parked = {}
  for await (const it of rmq.parked(orders)) {
    parked[it.message.messageId] = [it.reason, it.error]
    await it.drop()
  }
  assert.deepEqual(parked, { rejected: ['exhausted', 'no price'], signalled: ['requested', 'ask the customer'] })
})

test('an error that Promise.allSettled has kept is a failure beside other values', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }), batch: 2, batchWait: '1m', concurrency: 1 }
  const results = [null, { status: 'rejected', reason: new TypeError('no price') }]
  const consumer = await rmq.consume(options, () => results)
  await publish(rmq, orders, ['fine', 'failed'])
  await until('both have ended', () => consumer.stats().acked === 1 && consumer.stats().parked === 1)
})

test('what is no answer fails all', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const answers = [(messages) => messages.slice(1), (messages) => messages.map(async () => {}), () => park('all of them'), () => []]
  const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }), batch: 2, batchWait: '1m', concurrency: 1 }
  const consumer = await rmq.consume(options, (messages) => answers.shift()(messages))
  await publish(rmq, orders, numbers(8))
  await until('all are parked', () => consumer.stats().parked === 8)
  const parked = []
  for await (const it of rmq.parked(orders)) {
    parked.push(`${it.errorType}: ${it.error}`)
    await it.drop()
  }
  const wrong = (count) => `BatchAnswerError: the handler answered ${count} of 2 messages; return one answer for each, in their order`
  const promise = 'TypeError: the handler returned an array with a promise, which nobody awaits; write `await Promise.all(…)`'
  const expected = [wrong(1), promise, ': all of them', wrong(0)]
  assert.deepEqual(parked.sort(), [...expected, ...expected].sort())
})

test('a handler may change its array, and answers belong to the original order', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const handlers = {
    // Each message that is not handled would be missing in the end.
    drains: (messages) => void messages.splice(0),
    sorts: async (messages) => messages.reverse().map(({ messageId }) => (messageId === '0' ? park('bad') : undefined)),
    'sorts a copy': (messages) => messages.slice().reverse() && messages.map(({ messageId }) => (messageId === '0' ? park('bad') : undefined)),
    throws: (messages) => {
      messages.length = 0
      throw new RangeError('no answer')
    },
  }
  const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }), batch: 2, batchWait: '1m', concurrency: 1 }
  const ends = {}
  for (const [name, handler] of Object.entries(handlers)) {
    const consumer = await rmq.consume(options, handler)
    const before = consumer.stats()
    await publish(rmq, orders, numbers(2))
    await until('both have ended', () => consumer.stats().acked + consumer.stats().parked === before.acked + before.parked + 2)
    await consumer.close()
    ends[name] = []
    for await (const it of rmq.parked(orders)) {
      ends[name].push(`${it.message.messageId} ${it.errorType}: ${it.error}`)
      await it.drop()
    }
    ends[name].sort()
  }
  const changed =
    'BatchAnswerError: the handler changed the array of messages, so its answers have no order; ' +
    'sort a copy, and return an array with one answer for each message, in their order'
  assert.deepEqual(ends, {
    drains: [],
    sorts: [`0 ${changed}`, `1 ${changed}`],
    'sorts a copy': ['0 : bad'],
    throws: ['0 RangeError: no answer', '1 RangeError: no answer'],
  })
})

test('the handler timeout fails all messages of the batch', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const aborted = []
  const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }), batch: 3, batchWait: '1m', handlerTimeout: '100ms' }
  const consumer = await rmq.consume(
    options,
    (_, { signal }) => new Promise((resolve) => signal.addEventListener('abort', () => resolve(aborted.push(signal.reason.name)))),
  )
  await publish(rmq, orders, numbers(3))
  await until('all are parked', () => consumer.stats().parked === 3)
  assert.deepEqual(aborted, ['TimeoutError'])
  for await (const it of rmq.parked(orders)) {
    assert.deepEqual([it.errorType, it.error], ['HandlerTimeout', 'the handler took longer than 100ms'])
    await it.drop()
  }
})

test('a handler that blocks the event loop beyond its time has failed', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const warned = []
  setLogger({ error() {}, warn: (text) => warned.push(text), info() {}, debug() {} })
  t.after(() => setLogger(false))
  const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }), batch: 2, batchWait: '1m', handlerTimeout: '50ms' }
  const consumer = await rmq.consume(options, () => {
    for (const until = Date.now() + 300; Date.now() < until; );
  })
  await publish(rmq, orders, numbers(2))
  await until('both are parked', () => consumer.stats().parked === 2)
  assert.match(warned.find((text) => text.includes('was blocked')), /the handler timeout of 50ms of a batch of 2 messages had passed/)
})

test('closing lets the batch that is handled finish, and requeues the rest', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const { promise: opened, resolve: open } = deferred()
  const handled = []
  const options = { queue: orders, dlx: true, batch: 3, batchWait: '1m', concurrency: 1 }
  const consumer = await rmq.consume(options, async (messages) => {
    handled.push(...ids(messages))
    await opened
  })
  // A complete batch that is handled, another one behind it, and an incomplete one.
  await publish(rmq, orders, numbers(8))
  await until('the first is handled', () => handled.length === 3 && consumer.stats().delivered === 8)
  const closing = consumer.close()
  open()
  await closing
  assert.deepEqual(handled, ['0', '1', '2'])
  assert.equal(consumer.stats().acked, 3)
  const rest = []
  const other = await rmq.consume({ queue: orders, dlx: true }, (message) => void rest.push(message.messageId))
  await until('the rest is handled', () => rest.length === 5)
  assert.deepEqual(rest.sort(), ['3', '4', '5', '6', '7'])
  await other.close()
})

test('stopping redelivers the batch that is handled', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const { promise: begun, resolve } = deferred()
  const consumer = await rmq.consume({ queue: orders, dlx: true, batch: 2, batchWait: '1m' }, async (messages, { signal }) => {
    resolve(signal)
    await new Promise(() => {})
  })
  await publish(rmq, orders, numbers(2))
  const signal = await begun
  consumer.stop()
  await consumer.closed
  assert.equal(signal.reason.code, 'closed')
  const again = []
  await rmq.consume({ queue: orders, dlx: true }, (message) => void again.push([message.messageId, message.redelivered]))
  await until('both come again', () => again.length === 2)
  assert.deepEqual(again.sort(), [['0', true], ['1', true]])
})

test('middleware of a client is around single messages', async (t) => {
  const calls = []
  const middleware = (msg, next) => (calls.push(msg.messageId), next())
  const [rmq, orders] = [await client(t, { middleware: [middleware] }), await queue(t)]
  const handled = []
  await rmq.consume({ queue: orders, dlx: true, batch: 2, batchWait: 0 }, (messages) => void handled.push(...ids(messages)))
  await publish(rmq, orders, ['7'])
  await until('it is handled', () => handled.length === 1)
  assert.deepEqual(calls, [])
})

test('options that do not go together are refused', async (t) => {
  const rmq = await client(t)
  const refuses = (options, pattern) => assert.rejects(rmq.consume({ queue: 'orders', ...options }, () => {}), pattern)
  await refuses({ batch: 0 }, /`batch` must be a whole number between 1 and 10000, not 0/)
  await refuses({ batch: '7' }, /`batch` must be a number, not a string/)
  await refuses({ batchWait: '1s' }, /`batchWait`/)
  await refuses({ batch: 10, batchWait: '2m' }, /`batchWait`/)
  await refuses({ batch: 100, prefetch: 10 }, /`prefetch`/)
  await refuses({ batch: 2, middleware: [() => {}] }, /`middleware` is around single messages, and does not go together with `batch`/)
})

test('a simulation gives a handler of batches one message at a time', async () => {
  const sizes = []
  const options = { queue: 'orders', dlx: true, retry: 'fixed(1s, retries=1)', batch: 100 }
  const { attempts, parked } = await simulate(options, async (messages) => (sizes.push(messages.length), [new Error('no')]), ['x', 'y'])
  assert.deepEqual(sizes, [1, 1, 1, 1])
  assert.equal(attempts[0].error.message, 'no')
  assert.deepEqual(parked.map(({ reason }) => reason), ['exhausted', 'exhausted'])
  const thrown = await simulate(options, () => park('all'), ['x'])
  assert.equal(thrown.parked[0].reason, 'requested')
})
