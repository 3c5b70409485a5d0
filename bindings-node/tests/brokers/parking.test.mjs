// Parked messages: whose they are, who else holds them, and who may consume their queue.

import assert from 'node:assert/strict'

import { connect } from 'retryrmq'

import { client, declare, queue, test, until } from './broker.mjs'
import { at, proxy } from './network.mjs'

/** What a queue holds, by the text of each; the consumer that took it ends. */
async function taken(rmq, name, count) {
  const found = []
  const consumer = await rmq.consume({ queue: name }, (msg) => void found.push([msg.text(), msg.replays]))
  await until('all are there', () => found.length >= count)
  await consumer.close()
  return found
}

test('a reserved name is consumed when it is said twice', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const parking = `${orders}.parked`
  await declare(parking)
  await rmq.publish(parking, '7')
  const seen = []
  const handler = (msg) => void seen.push(msg.text())
  await assert.rejects(rmq.consume({ queue: parking }, handler), { code: 'invalid_option', message: /`reservedName`/ })
  const consumer = await rmq.consume({ queue: parking, reservedName: true }, handler)
  await until('it is gone', () => consumer.stats().acked === 1)
  assert.deepEqual(seen, ['7'])
})

test('what another queue lost goes home, or where it is sent', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const parking = `${orders}.parked`
  await declare(parking)
  const billing = await queue(t, 'quorum', { 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': parking })
  for (const text of ['home', 'away']) await rmq.publish(billing, text)
  const rejecting = await rmq.consume({ queue: billing }, () => Promise.reject(new Error('no')))
  await until('both are rejected', () => rejecting.stats().rejected === 2)
  await rejecting.close()

  const marks = async () => {
    const found = {}
    for await (const it of rmq.parked(orders)) {
      assert.deepEqual([it.home, it.byBroker], [billing, true])
      assert.match(it.mark, /^[0-9a-f]{16}$/)
      found[it.message.text()] = it.mark
    }
    return found
  }
  const first = await until('both are parked', async () => {
    const found = await marks()
    return Object.keys(found).length === 2 && found
  })
  assert.notEqual(first.home, first.away)
  assert.deepEqual(await marks(), first) // wherever they stand now
  for await (const it of rmq.parked(orders)) {
    if (it.message.text() === 'home') {
      await it.replay()
      continue
    }
    await assert.rejects(it.replayTo(7), /`queue` must be a string/)
    await assert.rejects(it.replayTo(`${orders}.nowhere`), { code: 'unroutable' })
    await it.replayTo(orders)
  }
  assert.deepEqual(await taken(rmq, billing, 1), [['home', 1]])
  assert.deepEqual(await taken(rmq, orders, 1), [['away', 1]])
})

test('a loop tells who else is there', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  await declare(`${orders}.parked`, { 'x-delivery-limit': 1_000_000_000 })
  // A loop is sent 32 at first.
  await Promise.all(Array.from({ length: 40 }, (_, number) => rmq.publish(`${orders}.parked`, String(number))))
  const [early, late] = [rmq.parked(orders), rmq.parked(orders)]
  assert.deepEqual([early.remaining, early.others, early.missed, early.warning], [0, 0, 0, undefined])
  let [seen, taken] = [0, 0]
  for await (const it of early) {
    assert.equal(early.remaining, 39 - seen++)
    if (seen > 1) continue
    for await (const other of late) {
      await other.drop()
      taken++
    }
    assert.deepEqual([late.remaining, late.others, late.missed], [0, 1, 0])
    assert.notEqual(it.mark, '')
  }
  assert.ok(taken > 0)
  assert.equal(seen + taken, 40)
  assert.deepEqual([early.remaining, early.others, early.missed, early.warning], [0, 0, taken, undefined])
})

test('a loop warns of a parking queue that may drop', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  await declare(`${orders}.parked`, { 'x-max-length': 1 })
  const parked = rmq.parked(orders)
  for await (const it of parked) assert.fail(`there is none: ${it.error}`)
  assert.match(parked.warning, /x-max-length/)
})

test('a loop that waits for its next message can be left', async (t) => {
  const [way, orders] = [await proxy(t), await queue(t)]
  const rmq = await connect(at(way.place))
  t.after(() => rmq.close())
  await declare(`${orders}.parked`, { 'x-delivery-limit': 1_000_000_000 })
  const count = 300
  await Promise.all(Array.from({ length: count }, (_, number) => rmq.publish(`${orders}.parked`, String(number))))
  const loop = rmq.parked(orders)[Symbol.asyncIterator]()
  await loop.next()
  way.hold()
  let shown = 1
  const rest = Array.from({ length: count - 1 }, async () => {
    const { done } = await loop.next()
    if (!done) shown++
  })
  let before
  await until('no more come', () => before === shown || ((before = shown), false))
  const left = loop.return()
  way.release() // the end itself needs the broker
  await Promise.all([left, ...rest])
  assert.ok(shown < count, `${shown} were shown`)
  let found = 0
  for await (const it of rmq.parked(orders)) found += it.mark === '' ? 0 : 1
  assert.equal(found, count)
})
