// Handlers on a real broker.

import assert from 'node:assert/strict'
import { AsyncLocalStorage } from 'node:async_hooks'
import { once } from 'node:events'

import { fixed, park, setLogger } from 'retryrmq'

import { client, cut, deferred, isBefore43, queue, test, until } from './broker.mjs'

const quickly = (retries) => fixed('100ms', { retries })

test('a message that fails comes back with its error, and is handled', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const seen = []
  const consumer = await rmq.consume({ queue: orders, dlx: true, retry: quickly(3) }, async (msg) => {
    seen.push([msg.text(), msg.attempt, msg.lastError])
    if (msg.attempt === 1) throw new TypeError('not yet')
  })
  await rmq.publish(orders, 'hello', { messageId: '1' })
  await until('it was handled', () => consumer.stats().acked === 1)
  assert.deepEqual(seen, [
    ['hello', 1, undefined],
    ['hello', 2, 'not yet'],
  ])
  assert.equal(consumer.stats().retried, 1)
  assert.match(rmq.metricsText(), new RegExp(`retryrmq_messages_retried_total\\{queue="${orders}"\\} 1`))
})

test('events come typed, by name and all of them', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const all = []
  const byName = []
  const consumer = await rmq.consume(
    { queue: orders, dlx: true, retry: quickly(1), onEvent: (event) => all.push(event.name) },
    () => {
      throw new Error('never')
    },
  )
  consumer.on('retried', (event) => byName.push(event))
  consumer.on('parked', () => {
    throw new Error('a listener that throws changes nothing')
  })
  consumer.on('parked', (event) => byName.push(event))
  await rmq.publish(orders, 'x', { messageId: 'it' })
  await until('both were told', () => all.length === 2 && byName.length >= 1)
  assert.deepEqual(all, ['retried', 'parked'])
  const about = { queue: orders, messageId: 'it', attempt: 1, error: 'never', errorType: 'Error' }
  assert.deepEqual(byName[0], { name: 'retried', delay: 100, ...about })
})

test('listeners that fail keep nobody from being told', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const [lines, told] = [[], []]
  const quiet = () => {}
  setLogger({ error: (line) => lines.push(line), warn: quiet, info: quiet, debug: quiet })
  t.after(() => setLogger(false))
  const unhandled = (error) => lines.push(`unhandled: ${error.message}`)
  process.on('unhandledRejection', unhandled)
  t.after(() => process.off('unhandledRejection', unhandled))
  const onEvent = (event) => {
    if (event.name === 'retried') throw new Error('onEvent threw')
    return Promise.reject(new Error('onEvent rejected'))
  }
  const consumer = await rmq.consume({ queue: orders, dlx: true, retry: quickly(1), onEvent }, () => {
    throw new Error('never')
  })
  for (const name of ['retried', 'parked']) {
    consumer.on(name, async () => {
      told.push(name)
      throw new Error(`${name} rejected`)
    })
  }
  await rmq.publish(orders, 'x')
  await until('all are told', () => told.length === 2 && lines.length >= 4)
  const says = lines.map((line) => line.split('\n')[0]).sort()
  assert.deepEqual(says, [
    'retryrmq: a listener of parked rejected: Error: onEvent rejected',
    'retryrmq: a listener of parked rejected: Error: parked rejected',
    'retryrmq: a listener of retried rejected: Error: retried rejected',
    'retryrmq: a listener of retried threw: Error: onEvent threw',
  ])
})

test('an event that never comes is refused', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const consumer = await rmq.consume({ queue: orders }, () => {})
  assert.throws(() => consumer.on('retryed', () => {}), { name: 'InvalidTypeError', message: /no event `retryed`; .* retried,/ })
  assert.throws(() => consumer.once('alreadyHandled', () => {}), TypeError)
  for (const name of ['error', 'newListener', 'removeListener', 'already_handled']) consumer.on(name, () => {})
  const controller = new AbortController()
  const waiting = once(consumer, 'parked', { signal: controller.signal })
  controller.abort()
  await assert.rejects(waiting, { name: 'AbortError' })
})

test('at most as many handlers at a time, and messages in their order', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t, 'classic')]
  let running = 0
  let most = 0
  const order = []
  const full = deferred()
  for (let n = 0; n < 40; n++) await rmq.publish(orders, String(n))
  const consumer = await rmq.consume({ queue: orders, concurrency: 3 }, async (msg) => {
    most = Math.max(most, ++running)
    order.push(Number(msg.text()))
    if (running === 3) full.resolve()
    await full.promise // a busy broker may send one message after the other
    await new Promise((resolve) => setImmediate(resolve))
    running--
  })
  await until('all were handled', () => consumer.stats().acked === 40)
  assert.equal(most, 3)
  assert.deepEqual(order, [...Array(40).keys()])
})

test('thousands of quick messages, sync and async, leave the event loop its turn', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const total = 5000
  const publishing = []
  for (let n = 0; n < total; n++) publishing.push(rmq.publish(orders, String(n)))
  await Promise.all(publishing)
  const seen = new Set()
  let turns = 0
  const counting = setInterval(() => turns++, 1)
  const handle = (msg) => {
    seen.add(msg.text())
    return Number(msg.text()) % 2 === 0 ? undefined : Promise.resolve()
  }
  const consumer = await rmq.consume({ queue: orders, prefetch: 500 }, handle)
  await until('all were handled', () => consumer.stats().acked === total)
  clearInterval(counting)
  assert.equal(seen.size, total)
  assert.ok(turns > 3, `${turns} turns`)
})

test('the asynchronous context of consume reaches the handler, and what a handler sets stays there', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const storage = new AsyncLocalStorage()
  const seen = []
  const done = deferred()
  await storage.run('outside', () =>
    rmq.consume({ queue: orders, concurrency: 1 }, async () => {
      seen.push(storage.getStore())
      storage.enterWith('inside')
      await new Promise((resolve) => setImmediate(resolve))
      seen.push(storage.getStore())
      if (seen.length === 4) done.resolve()
    }),
  )
  await storage.run('elsewhere', () => Promise.all([rmq.publish(orders, '1'), rmq.publish(orders, '2')]))
  await done.promise
  assert.deepEqual(seen, ['outside', 'inside', 'outside', 'inside'])
})

test('a handler that never ends is aborted, its message retried, its place free', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const reasons = []
  const handle = (msg, ctx) => {
    if (msg.attempt > 1) return
    ctx.signal.addEventListener('abort', () => reasons.push(ctx.signal.reason.name))
    return new Promise(() => {})
  }
  const options = { queue: orders, dlx: true, retry: quickly(3), concurrency: 1, handlerTimeout: 50 }
  const consumer = await rmq.consume(options, handle)
  for (const n of [1, 2, 3]) await rmq.publish(orders, String(n))
  await until('all were handled at last', () => consumer.stats().acked === 3)
  assert.deepEqual(reasons, ['TimeoutError', 'TimeoutError', 'TimeoutError'])
})

test('a time limit longer than a timer can be is not over at once', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const attempts = []
  const consumer = await rmq.consume({ queue: orders, dlx: true, handlerTimeout: 2 ** 31 }, async (msg) => {
    attempts.push(msg.attempt)
    await new Promise((resolve) => setTimeout(resolve, 30))
  })
  await rmq.publish(orders, 'x')
  await until('it was handled', () => consumer.stats().acked === 1)
  assert.deepEqual(attempts, [1])
})

test('what a handler does after its time changes nothing', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const unhandled = []
  const hear = (error) => unhandled.push(error)
  process.on('unhandledRejection', hear)
  t.after(() => process.off('unhandledRejection', hear))
  const late = []
  const handle = (msg) => {
    if (msg.attempt > 1) return
    return new Promise((resolve, reject) => late.push(msg.text() === 'resolve' ? resolve : reject))
  }
  const consumer = await rmq.consume({ queue: orders, dlx: true, retry: quickly(3), handlerTimeout: 50 }, handle)
  await rmq.publish(orders, 'resolve')
  await rmq.publish(orders, 'reject')
  await until('both were handled at the second attempt', () => consumer.stats().acked === 2)
  for (const settle of late) settle(new Error('too late'))
  await new Promise((resolve) => setTimeout(resolve, 50))
  assert.deepEqual(unhandled, [])
  assert.equal(consumer.stats().stale, 0)
})

test('closing lets handlers finish, and gives back what has not begun', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const begun = deferred()
  const finish = deferred()
  let runs = 0
  const consumer = await rmq.consume({ queue: orders, concurrency: 1 }, async () => {
    runs++
    begun.resolve()
    await finish.promise
  })
  for (let n = 0; n < 10; n++) await rmq.publish(orders, String(n))
  await begun.promise
  const closing = [consumer.close(), consumer.close()]
  finish.resolve()
  await Promise.all(closing)
  await consumer.close()
  assert.equal(runs, 1)
  const seen = []
  const next = await rmq.consume({ queue: orders }, (msg) => void seen.push([msg.text(), msg.redelivered]))
  await until('the others are there', () => next.stats().acked === 10)
  assert.equal(seen.length, 9)
})

test('a handler may close its own consumer', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  let closing
  const started = deferred()
  const consumer = await rmq.consume({ queue: orders }, async () => {
    await started.promise
    closing = consumer.close()
  })
  started.resolve()
  await rmq.publish(orders, 'x')
  await consumer.closed
  await closing
  assert.equal(consumer.stats().acked, 1)
})

test('stopping waits for nobody, and aborts who still runs', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const begun = deferred()
  const consumer = await rmq.consume({ queue: orders }, (msg, ctx) => {
    begun.resolve(ctx.signal)
    return new Promise(() => {})
  })
  await rmq.publish(orders, 'x')
  const signal = await begun.promise
  consumer.stop()
  assert.equal(signal.reason.code, 'closed')
  await consumer.closed
  const next = await rmq.consume({ queue: orders }, () => {})
  await until('the message is handled by the next one', () => next.stats().acked >= 2 || next.stats().delivered >= 2)
})

test.everywhere('what no handler has begun when it stops does not count as delivered', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  await (await rmq.consume({ queue: orders, dlx: true }, () => {})).close()
  // So quick that more and more of them are taken at once.
  for (let n = 0; n < 250; n++) await rmq.publish(orders, String(n))
  const begun = deferred()
  const consumer = await rmq.consume({ queue: orders, dlx: true, concurrency: 1 }, (msg) => {
    if (msg.text() !== '150') return
    begun.resolve()
    return new Promise(() => {})
  })
  await begun.promise
  await until('the next one has arrived', () => consumer.stats().delivered > 151)
  consumer.stop()
  const counted = new Map()
  await rmq.consume({ queue: orders, dlx: true }, (msg) => {
    counted.set(Number(msg.text()), msg.headers['x-delivery-count'] ?? 0)
  })
  await until('the others are handled', () => counted.size === 100)
  // Before 4.3 a quorum queue counts what is given back as well. The broker may have sent more that had not arrived here.
  assert.deepEqual([counted.get(150), counted.get(151)], [1, (await isBefore43()) ? 1 : 0])
})

test('an abort signal closes the consumer', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const controller = new AbortController()
  const consumer = await rmq.consume({ queue: orders, signal: controller.signal }, () => {})
  controller.abort()
  await consumer.closed
  await assert.rejects(rmq.consume({ queue: orders, signal: controller.signal }, () => {}), { name: 'AbortError' })
})

test('no handler begins when the signal aborts, or the client closes, before the consumer is there', async (t) => {
  const orders = await queue(t)
  const rmq = await client(t)
  for (let n = 0; n < 5; n++) await rmq.publish(orders, String(n))
  let runs = 0
  const controller = new AbortController()
  const consuming = rmq.consume({ queue: orders, signal: controller.signal }, () => void runs++)
  controller.abort(new Error('changed my mind'))
  await assert.rejects(consuming, { message: 'changed my mind' })
  const another = await client(t)
  const late = another.consume({ queue: orders }, () => void runs++).catch((error) => error)
  await another.close()
  await (await late).closed
  assert.equal(runs, 0)
  const next = await rmq.consume({ queue: orders }, () => {})
  await until('all are still there', () => next.stats().acked === 5)
})

test('a lost connection is re-made, and nothing is lost', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const names = []
  const handled = new Set()
  const consumer = await rmq.consume(
    { queue: orders, dlx: true, retry: quickly(5), onEvent: (event) => names.push(event.name) },
    async (msg) => {
      await new Promise((resolve) => setTimeout(resolve, 5))
      if (msg.attempt === 1 && Number(msg.text()) % 3 === 0) throw new Error('once')
      handled.add(msg.text())
    },
  )
  const publish = async (from, to) => {
    for (let n = from; n < to; n++) await rmq.publish(orders, String(n), { messageId: `m${n}` })
  }
  await publish(0, 100)
  await cut(orders)
  await until('it is consuming again', () => names.includes('reconnected'))
  await publish(100, 200)
  await until('all were handled', () => handled.size === 200)
  assert.ok(names.includes('disconnected'))
  assert.ok(rmq.reconnects >= 1)
})

test('what the broker refuses rejects, with code and cause', async (t) => {
  const rmq = await client(t)
  await assert.rejects(rmq.consume({ queue: 'node-nobody-has-this' }, () => {}), {
    name: 'QueueNotFoundError',
    code: 'queue_not_found',
  })
  const orders = await queue(t, 'classic')
  await assert.rejects(
    rmq.consume({ queue: orders, dlx: true, strategy: 'dead-letter', retry: quickly(2) }, () => {}),
    { name: 'MismatchError', code: 'mismatch' },
  )
})

test('parked with a reason, by a handler that returns the signal', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const parked = deferred()
  const consumer = await rmq.consume({ queue: orders, dlx: true, retry: quickly(2) }, async () => park('no such customer'))
  consumer.on('parked', parked.resolve)
  await rmq.publish(orders, 'x')
  assert.equal((await parked.promise).reason, 'requested')
  assert.equal((await parked.promise).error, 'no such customer')
})

test('the higher priority gets the messages while it has room', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const seen = { high: 0, low: 0 }
  const consumer = await rmq.consume({ queue: orders, dlx: true, priority: 5 }, () => void seen.high++)
  for (let number = 0; number < 20; number++) {
    // It takes one at a time before it has seen some.
    if (number === 3) await rmq.consume({ queue: orders, dlx: true, priority: -5 }, () => void seen.low++)
    await rmq.publish(orders, 'x')
    // What is not acknowledged yet takes its room; both consumers share these counters.
    await until('somebody has done it', () => consumer.stats().acked > number)
  }
  assert.deepEqual(seen, { high: 20, low: 0 })
})
