// What is written down of failures, for people.

import assert from 'node:assert/strict'

import { fixed, park, setLogger } from 'retryrmq'

import { client, program, queue, test, until } from './broker.mjs'

test('who is parked before the last retry has a stack as well, in the record and in the log', async (t) => {
  const [rmq, orders] = [await client(t, { appVersion: '1.2.3' }), await queue(t)]
  const lines = []
  const quiet = () => {}
  const stacks = []
  setLogger({ error: quiet, warn: (line) => lines.push(line), info: quiet, debug: (line) => stacks.push(line) })
  t.after(() => setLogger(false))
  const consumer = await rmq.consume({ queue: orders, dlx: true, fatal: [SyntaxError] }, (msg) => {
    if (msg.text() === 'park') throw park('junk', { cause: new TypeError('why') })
    msg.json()
  })
  for (const text of ['fatal', 'park']) await rmq.publish(orders, text)
  await until('both are parked', () => consumer.stats().parked === 2)
  const records = {}
  for await (const it of rmq.parked(orders)) records[it.message.text()] = it
  const { fatal, park: parked } = records
  assert.deepEqual([fatal.reason, fatal.attempts, parked.reason, parked.attempts], ['fatal', 1, 'requested', 1])
  assert.match(fatal.stack, /^SyntaxError: .*\n {4}at /)
  assert.match(parked.stack, /^(Park|Error): junk\n {4}at [^]*\ncaused by: TypeError: why\n {4}at /)
  const said = () => lines.filter((line) => line.includes(' failed: ')).map((line) => line.replace(/.* failed: /, ''))
  await until('both are in the log', () => said().length === 2)
  assert.match(said()[0], /^SyntaxError: .*; parked as fatal$/)
  assert.equal(said()[1], 'TypeError: junk; parked as requested')
  // In the log it is indented, all but its first line.
  const flat = (text) => text.replace(/\n +/g, '\n')
  for (const { stack } of [fatal, parked]) assert.ok(stacks.some((line) => flat(line).includes(flat(stack))))
  for (const { message } of [fatal, parked]) assert.deepEqual(message.history.map((entry) => entry.appVersion), ['1.2.3'])
})

test('an endless error is parked', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const consumer = await rmq.consume({ queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }) }, () => {
    throw new Error('x'.repeat(100_000_000))
  })
  await rmq.publish(orders, 'x')
  await until('it is parked', () => consumer.stats().parked === 1)
})

test('warnings go to the console unless there is a logger', async (t) => {
  const name = await queue(t)
  const rmq = await client(t)
  await rmq.publish(name, 'x', { messageId: 'it' })
  const { code, text, errors } = await program('no_logger', [name])
  assert.deepEqual([code, text], [0, ''])
  assert.equal(errors, `retryrmq: attempt 1 of 1 of message it in ${name} failed: Error: no; parked as exhausted\n`)
})
