// The way between the two halves: how often it is gone, and what it survives.

import assert from 'node:assert/strict'
import { createHook } from 'node:async_hooks'
import { createRequire } from 'node:module'
import path from 'node:path'

import { fixed } from 'retryrmq'

import { URL_, client, deferred, program, queue, test, until } from './broker.mjs'

const require = createRequire(import.meta.url)
const { native } = require(path.join(path.dirname(require.resolve('retryrmq')), 'native.js'))

/** The calls of a method of the native half until the test is over. */
function calls(t, Class, method) {
  const found = []
  const original = Class.prototype[method]
  Class.prototype[method] = function (...args) {
    const result = original.apply(this, args)
    found.push({ args, result })
    return result
  }
  t.after(() => (Class.prototype[method] = original))
  return found
}

async function publish(rmq, name, count) {
  await Promise.all([...Array(count).keys()].map((n) => rmq.publish(name, `message ${n}`)))
}

test('messages, their ends and wake-ups cross in batches', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const total = 400
  const crossings = {
    takes: calls(t, native.Subscription, 'take'),
    settles: calls(t, native.Subscription, 'settle'),
    wakes: calls(t, native.NotificationQueue, 'fetch'),
  }
  const consumer = await rmq.consume({ queue: orders, prefetch: 500 }, async () => {})
  let published = 0
  const handled = () => until('all are handled', () => consumer.stats().acked === published)
  const seen = []
  // A consumer takes one message at a time at first, and a busy machine sends the others in small batches.
  while (seen.length < 10) {
    published += total
    const sent = publish(rmq, orders, total)
    // Nothing may depend on how quick the broker is: this thread looks away until the native half has them all.
    const asleep = new Int32Array(new SharedArrayBuffer(4))
    for (const end = Date.now() + 5_000; consumer.stats().outstanding < total && Date.now() < end; ) {
      Atomics.wait(asleep, 0, 0, 5)
    }
    const { outstanding } = consumer.stats()
    for (const them of Object.values(crossings)) them.length = 0
    await sent
    await handled()
    if (outstanding < total) {
      seen.push(`${outstanding} of ${total} came at once`)
      continue
    }
    const counts = Object.entries(crossings).map(([name, { length }]) => [name, length])
    for (const [name, count] of counts) assert.ok(count > 0, name)
    if (counts.every(([, count]) => count < total / 4)) return await consumer.close()
    seen.push(`${counts.map((count) => count.join(' ')).join(', ')} for ${total} messages`)
  }
  assert.fail(seen.join('; '))
})

test('handlers that end ask for no messages where there are none', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const end = deferred()
  let begun = 0
  const consumer = await rmq.consume({ queue: orders }, () => {
    begun++
    return end.promise
  })
  await publish(rmq, orders, 10)
  await until('all have begun', () => begun === 10)
  const takes = calls(t, native.Subscription, 'take')
  end.resolve()
  await until('all are handled', () => consumer.stats().acked === 10)
  assert.equal(takes.length, 0)
})

test('handlers that wait are given no messages that they cannot begin', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  await publish(rmq, orders, 40)
  const takes = calls(t, native.Subscription, 'take')
  const end = deferred()
  let begun = 0
  const consumer = await rmq.consume({ queue: orders, concurrency: 12 }, () => {
    begun++
    return end.promise
  })
  await until('as many have begun as may run', () => begun === 12)
  let taken = 0
  for (const { result } of takes.filter(({ result }) => result !== null)) {
    for (let at = 0; at < result.messages.length; at += result.messages.readUInt32LE(at)) taken++
  }
  assert.equal(taken, 12)
  end.resolve()
  await until('all are handled', () => consumer.stats().acked === 40)
})

test('numbers of operations and subscriptions have no end', async (t) => {
  const orders = await queue(t)
  const far = 2 ** 33
  const heard = []
  const notifications = new native.NotificationQueue(() => heard.push(notifications.fetch()))
  const completed = () => heard.flatMap((one) => one.completed ?? [])
  const answer = (ticket) =>
    until(`${ticket} is answered`, () => {
      const failed = heard.flatMap((one) => one.failed ?? []).find((one) => one.ticket === ticket)
      assert.equal(failed, undefined)
      return completed().find((one) => one.ticket === ticket)?.value
    })
  const connecting = native.connect(notifications, far + 1, URL_, '', null, false, false, null)
  t.after(() => connecting.giveUp()) // kept until then, as it gives up when it is let go
  const connected = await answer(far + 1)
  t.after(() => connected) // as above: what is let go closes, which interrupts what it was asked for
  const listening = new native.ListenerFlag()
  listening.begin()
  const subscribing = connected.subscribe(notifications, far + 2, new native.Options(JSON.stringify({ queue: orders })), far + 3, listening)
  t.after(() => subscribing.giveUp()) // as above
  const subscription = await answer(far + 2)
  assert.equal(subscription.listen(notifications, far + 3), 'none')
  await publish(await client(t), orders, 1)
  await until('it is told to look', () => heard.some((one) => one.ready?.includes(far + 3)))
  const token = Number(subscription.take(true).messages.readBigUInt64LE(8))
  const failed = Buffer.alloc(8 + 1 + 8 + 4 + 4 + 4 + 4)
  failed.writeDoubleLE(token)
  failed.write('r', 8)
  failed.writeDoubleLE(Number.NaN, 9)
  failed.writeUInt32LE(0xffff_ffff, 29)
  subscription.settle(new Float64Array(0), 0, failed)
  await until('it is told of the event', () =>
    heard.flatMap((news) => news.events ?? []).some(([subscription, row]) => subscription === far + 3 && JSON.parse(row).name === 'rejected'),
  )
  subscription.close()
  subscription.waitClosed(notifications, far + 4)
  connected.close(notifications, far + 5)
  await until('both have ended', () => [4, 5].every((n) => heard.some((news) => news.done?.includes(far + n))))
})

test('a handler that transfers its body to a thread takes nothing from the others', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  await publish(rmq, orders, 20)
  const seen = new Set()
  const { port1 } = new MessageChannel()
  t.after(() => port1.close())
  const consumer = await rmq.consume({ queue: orders, concurrency: 1 }, (msg) => {
    port1.postMessage(msg.body, [msg.body.buffer])
    seen.add(msg.text())
  })
  await until('all are handled', () => consumer.stats().acked === 20)
  assert.equal(seen.size, 20)
})

const [major] = process.versions.node.split('.')
const skip = Number(major) < 20 && 'Node 18 has no transfer()'
test('whatever a handler does to the memory of its message, the others keep theirs', { skip }, async (t) => {
  const name = await queue(t)
  // Before Node 22 it has to be asked for.
  const flags = 'transfer' in ArrayBuffer.prototype ? [] : ['--harmony-rab-gsab-transfer']
  const { code, text, errors } = await program('transferred_memory', [name], undefined, flags)
  assert.deepEqual([code, errors, text], [0, '', 'handled 40, failed 0, wrong 0\n'])
})

test('a consumer whose turn throws silences no other one', async (t) => {
  const names = [await queue(t), await queue(t), await queue(t)]
  const { code, text, errors } = await program('two_consumers', names)
  assert.deepEqual([code, errors, text], [0, '', 'survived once\nhandled 3\n'])
})

test('every handler whose beginning is told to hooks is told to be gone', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const alive = new Set()
  let begun = 0
  const hook = createHook({
    init(id, type) {
      if (type !== 'RetryRmqHandler') return
      begun++
      alive.add(id)
    },
    destroy: (id) => alive.delete(id),
  }).enable()
  t.after(() => hook.disable())
  await publish(rmq, orders, 200)
  const consumer = await rmq.consume({ queue: orders }, async () => {})
  await until('all are handled', () => consumer.stats().acked === 200)
  await until('all are gone', () => {
    globalThis.gc()
    return alive.size <= 1
  })
  assert.ok(begun >= 200)
})

for (const [method, says] of [
  ['take', 'acked 100, stale 0\n'],
  ['settle', 'acked 100, stale 0\n'],
]) {
  test(`an error in between that the process survives silences no consumer (${method})`, async (t) => {
    const name = await queue(t)
    await publish(await client(t), name, 100)
    const { code, text, errors } = await program('native_error', [name, method])
    assert.deepEqual([code, errors, text], [0, '', `survived once\n${says}`])
  })
}

test('a walk that is over settles nothing', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const consumer = await rmq.consume({ queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }) }, () => {
    throw new Error('no')
  })
  await publish(rmq, orders, 1)
  await until('it is parked', () => consumer.stats().parked === 1)
  await consumer.close()
  let kept
  for await (const it of rmq.parked(orders)) kept = it
  for (const how of ['replay', 'drop']) {
    await assert.rejects(kept[how](), { name: 'ClosedError', message: /inside the loop/ })
  }
})

for (const { what, harm, parked } of [
  // Behind the number of the message and a letter: the delay.
  { what: 'makes no sense', harm: (ends) => ends.writeDoubleLE(-1, 9), parked: 2 },
  { what: 'cannot be read', harm: (ends) => ends.write('?', ends.indexOf('second') - 13), parked: 1 },
]) {
  test(`an end that ${what} keeps no other one from its message`, async (t) => {
    const [rmq, orders] = [await client(t), await queue(t)]
    const original = native.Subscription.prototype.settle
    t.after(() => (native.Subscription.prototype.settle = original))
    const batches = []
    native.Subscription.prototype.settle = function (handled, count, others) {
      if (others === null) return original.call(this, handled, count, others)
      harm(others)
      const batch = { count, error: undefined }
      batches.push(batch)
      try {
        return original.call(this, handled, count, others)
      } catch (error) {
        batch.error = error
      }
    }
    const begun = []
    const end = deferred()
    const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }), drainTimeout: 0 }
    const consumer = await rmq.consume(options, async (msg) => {
      begun.push(msg.text())
      await end.promise
      if (msg.text() !== 'fine') throw new Error(msg.text())
    })
    for (const text of ['first!', 'second', 'fine']) await rmq.publish(orders, text)
    await until('all have begun', () => begun.length === 3)
    end.resolve()
    await until('they end', () => consumer.stats().acked === 1 && consumer.stats().parked === parked)
    assert.equal(batches.length, 1)
    assert.equal(batches[0].count, 1)
    assert.equal(batches[0].error === undefined, parked === 2)
  })
}
