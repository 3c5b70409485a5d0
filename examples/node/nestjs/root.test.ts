// A root module that connects to a broker, tested without one.

import 'reflect-metadata'

import assert from 'node:assert/strict'
import { test } from 'node:test'

import { Module } from '@nestjs/common'
import { Test } from '@nestjs/testing'
import { Client } from 'retryrmq'
import { RetryRmqModule, RetryRmqTesting } from 'retryrmq/nestjs'

import { OrdersModule } from './orders.js'

@Module({ imports: [RetryRmqModule.forRoot('amqp://rabbitmq.internal'), OrdersModule] })
class AppModule {}

test('tables are parked for a person', async () => {
  // ANCHOR: replaced
  const rmq = new RetryRmqTesting()
  const module = await Test.createTestingModule({ imports: [AppModule] }).overrideProvider(Client).useValue(rmq).compile()
  await module.init()
  const { parked } = await rmq.simulate('orders', ['{"id": 9, "item": "table"}'])
  // ANCHOR_END: replaced
  assert.equal(parked[0]?.reason, 'requested')
  await module.close()
})
