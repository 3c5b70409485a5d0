// The application without a broker, with its pipes and policies, on a virtual clock: `node --test dist/orders.test.js`.

import 'reflect-metadata'

import assert from 'node:assert/strict'
import { test } from 'node:test'

import { Test } from '@nestjs/testing'
import { RetryRmqModule, RetryRmqTesting } from 'retryrmq/nestjs'

import { OrdersModule, Warehouse } from './orders.js'

test('chairs are shipped at the third attempt, and invalid orders are parked at once', async () => {
  const shipped: number[] = []
  const module = await Test.createTestingModule({ imports: [OrdersModule, RetryRmqModule.forTest()] })
    .overrideProvider(Warehouse)
    .useValue({ ship: ({ id }: { id: number }) => void shipped.push(id) })
    .compile()
  await module.init()
  const { attempts, parked } = await module.get(RetryRmqTesting).simulate('orders', ['{"id": 7, "item": "chair"}', '{"id": "8"}'])
  assert.deepEqual(shipped, [7])
  assert.equal(attempts.length, 4)
  assert.equal(parked[0]?.reason, 'fatal')
  assert.equal(parked[0]?.message?.lastError, 'id must be an integer number; item must be a string')
  await module.close()
})
