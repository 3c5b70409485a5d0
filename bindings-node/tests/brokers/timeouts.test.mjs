// Handlers that take too long, and ends that do not wait for them.

import assert from 'node:assert/strict'

import { fixed, park, setLogger } from 'retryrmq'

import { client, deferred, program, queue, test, until } from './broker.mjs'

test('a signal that is asked for after the time limit has aborted', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const late = deferred()
  const options = { queue: orders, dlx: true, retry: fixed('10m'), handlerTimeout: 50 }
  const consumer = await rmq.consume(options, async (msg, ctx) => {
    await until('the attempt is over', () => consumer.stats().failed === 1)
    late.resolve(ctx.signal)
  })
  await rmq.publish(orders, 'x')
  const signal = await late.promise
  assert.deepEqual([signal.aborted, signal.reason.name], [true, 'TimeoutError'])
})

test('and after the consumer was stopped', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const [begun, stopped, late] = [deferred(), deferred(), deferred()]
  const consumer = await rmq.consume({ queue: orders, dlx: true }, async (msg, ctx) => {
    begun.resolve()
    await stopped.promise
    late.resolve(ctx.signal)
  })
  await rmq.publish(orders, 'x')
  await begun.promise
  consumer.stop()
  stopped.resolve()
  const signal = await late.promise
  assert.deepEqual([signal.aborted, signal.reason.code], [true, 'closed'])
})

test('but not after its handler has returned', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const given = deferred()
  const consumer = await rmq.consume({ queue: orders }, (msg, ctx) => given.resolve(ctx))
  await rmq.publish(orders, 'x')
  const context = await given.promise
  await consumer.close()
  assert.equal(context.signal.aborted, false)
})

test('closing waits for drainTimeout at most; who still runs is aborted, and its message comes again', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const begun = deferred()
  const consumer = await rmq.consume({ queue: orders, dlx: true, drainTimeout: 100 }, (msg, ctx) => {
    begun.resolve(ctx.signal)
    return new Promise(() => {})
  })
  await rmq.publish(orders, 'x')
  const signal = await begun.promise
  await consumer.close()
  assert.deepEqual([signal.aborted, signal.reason.code], [true, 'closed'])
  const next = await rmq.consume({ queue: orders }, () => {})
  await until('the message is handled by the next one', () => next.stats().acked === 1)
})

test('a handler that waits for close() is given up on at drainTimeout', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const done = deferred()
  const consumer = await rmq.consume({ queue: orders, dlx: true, drainTimeout: 100 }, async () => {
    await consumer.close()
    done.resolve()
  })
  await rmq.publish(orders, 'x')
  await done.promise
  await consumer.closed
  assert.equal(consumer.stats().acked, 0)
})

const block = (ms) => {
  for (const end = performance.now() + ms; performance.now() < end; );
}

for (const [how, handler] of [
  ['at once', () => block(400)],
  ['after an await', async () => {
    await null
    block(400)
  }],
  ['and throws', async () => {
    await new Promise(setImmediate)
    block(400)
    throw park('no')
  }],
]) {
  test(`a handler that blocks the event loop past its time limit has failed (${how})`, async (t) => {
    const [rmq, orders] = [await client(t), await queue(t)]
    const [warned, retried] = [[], []]
    setLogger({ error() {}, warn: (text) => warned.push(text), info() {}, debug() {} })
    t.after(() => setLogger(false))
    const options = { queue: orders, dlx: true, retry: fixed('10m'), handlerTimeout: 200 }
    const consumer = await rmq.consume(options, handler)
    consumer.on('retried', ({ error }) => retried.push(error))
    await rmq.publish(orders, 'x', { messageId: 'm1' })
    await until('the attempt has ended', () => {
      const { acked, parked } = consumer.stats()
      return acked + parked + retried.length > 0
    })
    assert.deepEqual(retried, ['the handler took longer than 200ms'])
    assert.deepEqual([consumer.stats().acked, consumer.stats().failed], [0, 1])
    const blocked = warned.filter((text) => text.includes(`${orders}: the event loop was blocked for `))
    assert.match(blocked.join(), /handler timeout of 200ms of attempt 1 of message m1 had passed: .* worker thread$/)
  })
}

for (const how of ['close', 'stop']) {
  test(`no time limit keeps a process alive after ${how}()`, async (t) => {
    const name = await queue(t)
    const rmq = await client(t)
    await rmq.publish(name, 'x')
    const { code, text, errors } = await program('endless_handler', [name, how])
    const told = /^retryrmq: handlers still running after the drain timeout of 100ms: 1; their messages are requeued .*\n$/
    assert.equal(code, 0)
    assert.match(errors, how === 'close' ? told : /^$/)
    assert.match(text, /began\nclosed\nbye\n/)
  })
}
