// A body that a schema refuses, on a broker.

import assert from 'node:assert/strict'

import { typed } from 'retryrmq'
import * as z from 'zod'

import { client, queue, test, until } from './broker.mjs'

test('a message whose body is invalid is parked as undecodable', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const handled = []
  const Order = z.object({ id: z.number() })
  const consumer = await rmq.consume({ queue: orders, dlx: true }, typed(Order, (order) => void handled.push(order)))
  const reasons = []
  consumer.on('parked', ({ reason, error }) => reasons.push([reason, error]))
  await rmq.publish(orders, '{"id":"seven"}', { messageId: '4711' })
  await rmq.publish(orders, '{"id":7}')
  await until('both are settled', () => handled.length === 1 && reasons.length === 1)
  assert.deepEqual(handled, [{ id: 7 }])
  assert.match(reasons[0][0], /^undecodable$/)
  assert.match(reasons[0][1], /^id: /)
  for await (const it of rmq.parked(orders)) {
    assert.deepEqual([it.message.messageId, it.reason, it.errorType, it.attempts], ['4711', 'undecodable', 'ValidationError', 1])
    await it.drop()
  }
})
