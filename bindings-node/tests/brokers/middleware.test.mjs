// What runs around attempts and publishes, on a broker.

import assert from 'node:assert/strict'

import { fixed } from 'retryrmq'

import { client, deferred, queue, test, until } from './broker.mjs'

test('the middleware of a client is around that of its consumers', async (t) => {
  const said = []
  const named = (name) => async (msg, next) => {
    said.push(`${name} ${msg.attempt}`)
    await next()
  }
  const [rmq, orders] = [await client(t, { middleware: [named('client')] }), await queue(t)]
  const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 1 }), middleware: [named('consumer')] }
  const consumer = await rmq.consume(options, (msg) => {
    said.push(`handler ${msg.attempt}`)
    if (msg.attempt === 1) throw new Error('no answer')
  })
  await rmq.publish(orders, 'x')
  await until('it is handled', () => consumer.stats().acked === 1)
  assert.deepEqual(said, ['client 1', 'consumer 1', 'handler 1', 'client 2', 'consumer 2', 'handler 2'])
})

test('a publish middleware changes headers and properties, and nothing else', async (t) => {
  const { promise: arrived, resolve } = deferred()
  const orders = await queue(t)
  let frozen
  const stamps = async (publish, next) => {
    publish.headers['x-request-id'] = '4711'
    publish.messageId ??= `${publish.routingKey} ${publish.exchange === ''} ${publish.body}`
    publish.priority = 3
    try {
      publish.body = 'other'
    } catch (error) {
      frozen = error
    }
    await next(publish)
  }
  const rmq = await client(t, { publishMiddleware: [stamps] })
  await rmq.consume({ queue: orders }, resolve)
  const headers = Object.freeze({ own: 1 })
  await rmq.publish(orders, 'body', { headers, priority: 1, type: 'order' })
  const msg = await arrived
  assert.deepEqual([msg.headers.own, msg.headers['x-request-id'], msg.text()], [1, '4711', 'body'])
  const { messageId, priority, type } = msg.properties
  assert.deepEqual([messageId, priority, type], [`${orders} true body`, 3, 'order'])
  assert.ok(frozen instanceof TypeError)
  assert.deepEqual(headers, { own: 1 })
})

test('a publish ends as its outermost middleware ends', async (t) => {
  const orders = await queue(t)
  const seen = []
  const middleware = async (publish, next) => {
    if (publish.body === 'refused') throw new RangeError('no')
    if (publish.body === 'dropped') return 7
    if (publish.body === 'forgotten') return void next()
    await next()
    seen.push(publish.body)
  }
  const rmq = await client(t, { publishMiddleware: [middleware] })
  await assert.rejects(rmq.publish(orders, 'refused'), RangeError)
  assert.equal(await rmq.publish(orders, 'dropped'), undefined)
  await assert.rejects(rmq.publish(orders, 'forgotten'), /a middleware returned before `next` was done/)
  await assert.rejects(rmq.publish(`${orders}-missing`, 'x'), { code: 'unroutable' })
  await assert.rejects(rmq.publish(orders, 'x', { nonsense: 1 }), /there is no option `nonsense`/)
  await assert.rejects(rmq.publish(orders, 'x', { headers: 7 }), /`headers` must be an object/)
  await assert.rejects(rmq.publish(orders, { a: 1 }), /`body` must be bytes or a string/)
  const numbers = Array.from({ length: 50 }, (_, number) => String(number))
  await Promise.all(numbers.map((number) => rmq.publish(orders, number)))
  assert.deepEqual(new Set(seen), new Set(numbers))
  const arrived = []
  await rmq.consume({ queue: orders, concurrency: 1 }, (msg) => void arrived.push(msg.text()))
  await until('all have arrived', () => arrived.length > numbers.length)
  assert.deepEqual(arrived, ['forgotten', ...numbers])
})

test('neither an attempt nor a publish ends well if no middleware heard of its failure', async (t) => {
  const others = process.listeners('unhandledRejection') // of the test runner, for which they are failures
  process.removeAllListeners('unhandledRejection').on('unhandledRejection', () => {})
  t.after(() => {
    process.removeAllListeners('unhandledRejection')
    for (const other of others) process.on('unhandledRejection', other)
  })
  /** A middleware that does not look at `next`, but returns after it is done. */
  const deaf = () => {
    const { promise: done, resolve } = deferred()
    const outer = async (_, next) => {
      next()
      await done
      await new Promise((resolve) => setImmediate(resolve))
    }
    return [outer, (_, next) => next().finally(resolve)]
  }
  const orders = await queue(t)
  const rmq = await client(t, { publishMiddleware: deaf() })
  await assert.rejects(rmq.publish(`${orders}-missing`, 'x'), { code: 'unroutable' })

  const consumer = await rmq.consume({ queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }), middleware: deaf() }, async () => {
    throw new RangeError('no answer')
  })
  await (await client(t)).publish(orders, 'x')
  await until('it has ended', () => consumer.stats().acked + consumer.stats().parked === 1)
  assert.equal(consumer.stats().parked, 1)
})

test('closing waits for a publish that is in a middleware', async (t) => {
  const orders = await queue(t)
  const { promise: opened, resolve: open } = deferred()
  const waits = (publish, next) => (publish.body === 'x' ? opened.then(() => next()) : next())
  const rmq = await client(t, { publishMiddleware: [waits] })
  const publishing = rmq.publish(orders, 'x')
  let closed = false
  const closing = rmq.close().then(() => (closed = true))
  await until('the client takes no more', () => rmq.publish(orders, 'y').then(() => false, ({ code }) => code === 'closed'))
  assert.equal(closed, false)
  open()
  await publishing
  await closing
  const other = await client(t)
  const arrived = []
  await other.consume({ queue: orders }, (msg) => void arrived.push(msg.text()))
  await until('it has arrived', () => arrived.includes('x'))
})
