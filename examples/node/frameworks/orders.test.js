// The real policy on a virtual clock, in Jest (`NODE_OPTIONS=--experimental-vm-modules npx jest`) and in Vitest
// (`npx vitest run --globals`).

import { park } from 'retryrmq'
import { simulate } from 'retryrmq/testing'

const options = { queue: 'orders', dlx: true, retry: 'fixed(1m, retries=3)' }

async function handle(msg) {
  const order = msg.json()
  if (order.item === undefined) throw park('nothing was ordered')
  if (order.item === 'table') throw new Error('no tables ever')
}

test('an order is parked after three minutes', async () => {
  const { attempts, parked } = await simulate(options, handle, ['{"item": "table"}'])
  expect(attempts.map((attempt) => attempt.at)).toEqual([0, 60_000, 120_000, 180_000])
  expect(parked[0].reason).toBe('exhausted')
})

test('an empty order is parked at once', async () => {
  const { attempts, parked } = await simulate(options, handle, ['{}'])
  expect(attempts).toHaveLength(1)
  expect(parked[0].reason).toBe('requested')
})
