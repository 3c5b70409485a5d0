// What is logged: texts of publishers stay on their line, and steer no terminal.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'

import { defer, fixed, setLogger } from 'retryrmq'

import { client, queue, test, until } from './broker.mjs'

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

test('the lines are those of bindings-common/table.json', async (t) => {
  const { levels, lines } = JSON.parse(readFileSync(new URL('../table.json', import.meta.url), 'utf8'))
  const rmq = await client(t)
  const said = []
  const keep = (level) => (line) => said.push(`${level} ${line}`)
  setLogger({ error: keep('error'), warn: keep('warn'), info: keep('info'), debug: keep('debug') })
  t.after(() => setLogger(false))
  const retry = fixed('200ms', { retries: 1 })
  const fails = () => {
    throw new Error('no answer')
  }
  let deferred = false
  const defers = () => {
    if (deferred) return
    deferred = true
    throw defer('100ms')
  }
  for (const [what, options, handler] of [
    ['retried', { dlx: true, retry }, fails],
    ['parked', { dlx: true, retry }, fails],
    ['dropped', { dlx: true, retry, park: false }, fails],
    ['rejected', {}, fails],
    ['deferred', { dlx: true, retry }, defers],
  ]) {
    const orders = await queue(t)
    const consumer = await rmq.consume({ ...options, queue: orders }, handler)
    await rmq.publish(orders, 'x', { messageId: '4711' })
    const line = `${levels[what]} retryrmq: ${lines[what].replace('orders', orders)}`
    await until(`${line} is logged`, () => said.includes(line))
    await consumer.close()
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
