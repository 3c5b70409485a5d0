// The handler gets a body that a schema has checked; another body is parked at once, with the names of its wrong fields.

import { connect, setLogger } from 'retryrmq'
// ANCHOR: handler
import { typed } from 'retryrmq'
import * as z from 'zod'

const Order = z.object({
  id: z.number().int(),
  items: z.array(z.object({ name: z.string(), count: z.number().default(1) })),
})

const handle = typed(Order, async (order, msg) => {
  const pieces = order.items.reduce((sum, { count }) => sum + count, 0)
  console.log(`order ${order.id} has ${pieces} pieces, at attempt ${msg.attempt}`)
})
// ANCHOR_END: handler

setLogger(false) // the events say it all
const queue = 'example.typed'
const rmq = await connect()
const consumer = await rmq.consume({ queue, dlx: true }, handle)
const parked = new Promise<void>((resolve) => {
  consumer.on('parked', ({ messageId, reason, error }) => {
    console.log(`${messageId} is parked, ${reason}: ${error}`)
    resolve()
  })
})
await rmq.publish(queue, '{"id": 7, "items": [{"name": "chair", "count": 4}, {"name": "table"}]}')
await rmq.publish(queue, '{"id": 8, "items": [{"name": 4}]}', { messageId: 'order-8' })
await parked
await consumer.close()
for await (const it of rmq.parked(queue)) {
  console.log(`drop ${it.message.messageId}: ${it.errorType}`)
  await it.drop()
}
await rmq.close()
