// What handlers return, with the real consumer: it agrees with the simulation.

import assert from 'node:assert/strict'

import { fixed } from 'retryrmq'

import { FINE, UNDONE } from '../unit/result_cases.mjs'
import { client, queue, test, until } from './broker.mjs'

test('work that nobody would do is a failed attempt, and anything else a success', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const unhandled = []
  const hear = (error) => unhandled.push(error)
  process.on('unhandledRejection', hear)
  t.after(() => process.off('unhandledRejection', hear))
  const cases = { ...FINE, ...Object.fromEntries(Object.entries(UNDONE).map(([name, { make }]) => [name, make])) }
  const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }) }
  const consumer = await rmq.consume(options, (msg) => {
    const [how, name] = msg.text().split(': ')
    return how === 'sync' ? cases[name]() : Promise.resolve().then(cases[name])
  })
  for (const name of Object.keys(cases)) for (const how of ['sync', 'async']) await rmq.publish(orders, `${how}: ${name}`)
  const [fine, undone] = [FINE, UNDONE].map((cases) => 2 * Object.keys(cases).length)
  await until('all have ended', () => consumer.stats().acked + consumer.stats().parked === fine + undone)
  const parked = new Map()
  for await (const it of rmq.parked(orders)) parked.set(it.message.text(), it)
  assert.equal(parked.size, undone)
  for (const [text, it] of parked) {
    assert.equal(it.errorType, 'TypeError', text)
    assert.match(it.error, UNDONE[text.split(': ')[1]].says)
  }
  assert.deepEqual(unhandled, [])
})

test('a generator function is refused before anything is asked of the broker', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  await assert.rejects(rmq.consume({ queue: orders }, function* () {}), { name: 'InvalidTypeError' })
})
