// Events out of the JSON of the native half.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import path from 'node:path'
import { test } from 'node:test'

const require = createRequire(import.meta.url)
const { made } = require(path.join(path.dirname(require.resolve('retryrmq')), 'events.js'))

test('delays are exact milliseconds, however long', () => {
  for (const ms of [1001, 4350, 365 * 86_400_000 + 1]) {
    assert.equal(made(`{"name":"paused","queue":"orders","delay":${ms}000000}`).delay, ms)
  }
})

test('only an event about a message has an id, and that always', () => {
  const of = (name) => Object.entries(made(JSON.stringify({ name, queue: 'orders' })))
  assert.deepEqual(of('replayed'), [['messageId', undefined], ['name', 'replayed'], ['queue', 'orders']])
  assert.deepEqual(of('resumed'), [['name', 'resumed'], ['queue', 'orders']])
  const moved = { name: 'unreadable_moved', queue: 'orders', to: 'orders.unreadable', count: 2, cause: 'why' }
  assert.deepEqual({ ...made(JSON.stringify(moved)) }, moved)
})
