// The real policy on a virtual clock: `node --test dist/testing-without-a-broker.test.js`, no broker.
// The same in vitest and jest, with their `test` and `expect`.

import assert from 'node:assert/strict'
import { test } from 'node:test'

import { park, setLogger, type ConsumerOptions, type Message } from 'retryrmq'
import { simulate } from 'retryrmq/testing'

setLogger(false)

const options: ConsumerOptions = { queue: 'orders', dlx: true, retry: 'fixed(1m, retries=3)', fatal: SyntaxError }

async function handle(msg: Message): Promise<void> {
  const order = msg.json<{ item?: string }>()
  if (order.item === undefined) throw park('nothing was ordered')
  if (order.item === 'chair' && msg.attempt < 3) throw new Error('no chairs today')
  if (order.item === 'table') throw new Error('no tables ever')
}

test('an order waits until there are chairs', async () => {
  const { attempts, acked, elapsed } = await simulate(options, handle, ['{"item": "chair"}'])
  assert.deepEqual(
    attempts.map((attempt) => attempt.at),
    [0, 60_000, 120_000],
  )
  assert.equal(acked.length, 1)
  assert.equal(elapsed, 120_000)
})

test('an order is parked after three minutes', async () => {
  const { parked } = await simulate(options, handle, ['{"item": "table"}'])
  assert.equal(parked[0]?.reason, 'exhausted')
  assert.equal(parked[0]?.at, 180_000)
  assert.equal(parked[0]?.message?.history.length, 4)
})

test('an error that a retry cannot fix parks the message at once', async () => {
  const { attempts, parked } = await simulate(options, handle, ['no json', { body: '{}', messageId: '7' }])
  assert.equal(attempts.length, 2)
  assert.deepEqual(
    parked.map((end) => end.reason),
    ['fatal', 'requested'],
  )
})
