// What is logged: texts of publishers stay on their line, and steer no terminal.

import assert from 'node:assert/strict'
import { test } from 'node:test'

import { fixed, setLogger } from 'retryrmq'

import { client, queue, until } from './broker.mjs'

const EVIL = '\u001b[2J\u001b]0;owned\u0007 a\rb\nretryrmq: forged\u2028\u202e\u009b1m'

test('what publishers write stays on its line of the log', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const lines = []
  const keep = (line) => lines.push(line)
  setLogger({ error: keep, warn: keep, info: keep, debug: keep })
  t.after(() => setLogger(false))
  const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 1 }) }
  const consumer = await rmq.consume(options, (msg) => {
    throw new Error(`cannot read ${msg.text()}`)
  })
  consumer.on('parked', (event) => {
    throw new Error(event.error)
  })
  await rmq.publish(orders, EVIL, { messageId: EVIL })
  await until('it is parked', () => consumer.stats().parked === 1)
  await until('all is logged', () => lines.some((line) => line.includes('a listener of parked')))
  const failed = lines.filter((line) => / failed: /.test(line))
  assert.equal(failed.length, 2)
  assert.match(failed[0], /^retryrmq: attempt 1 of 2 of message \\x1b\[2J.*\\nretryrmq: forged.* failed: Error: cannot read .*\\r.*forged.*; retry in 50ms$/)
  assert.match(failed[1], /; parked as exhausted$/)
  assert.ok(lines.some((line) => /the stack of .*\n {4}at /s.test(line)))
  for (const line of lines) {
    assert.doesNotMatch(line, /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u2028-\u202e]/)
    const [, ...others] = line.split('\n')
    for (const other of others) assert.match(other, /^\s/, line)
  }
})

test('a logger that rejects ends nothing', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const unhandled = []
  const hear = (error) => unhandled.push(error)
  process.on('unhandledRejection', hear)
  t.after(() => process.off('unhandledRejection', hear))
  let said = 0
  const away = async () => {
    said++
    throw new Error('the log server is away')
  }
  setLogger({ error: away, warn: away, info: away, debug: away })
  t.after(() => setLogger(false))
  const consumer = await rmq.consume({ queue: orders, dlx: true, retry: fixed('50ms', { retries: 1 }) }, () => {
    throw new Error('no')
  })
  await rmq.publish(orders, 'a')
  await until('it is parked', () => consumer.stats().parked === 1)
  await until('it is logged', () => said >= 2)
  // A rejection that nobody hears of is told after the turn in which it came.
  await new Promise((resolve) => setImmediate(resolve))
  assert.deepEqual(unhandled, [])
})
