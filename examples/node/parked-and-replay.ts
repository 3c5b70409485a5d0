// A bug parks messages. An operator browses them, the bug is fixed, and they are replayed.

import { connect, setLogger, type Client } from 'retryrmq'

interface Order {
  price: number
  discount?: { amount: number }
}

const queue = 'example.replay'
const orders = { 'order-1': { price: 10, discount: { amount: 1 } }, 'order-2': { price: 20 }, 'order-3': { price: 0.5 } }

function price(order: Order, fixed: boolean): number {
  const discount = fixed ? (order.discount?.amount ?? 0) : (order.discount as { amount: number }).amount
  return order.price - discount
}

/** Handles until `count` orders have been parked or are done. */
async function consume(rmq: Client, fixed: boolean, count: number): Promise<void> {
  await new Promise<void>(async (resolve) => {
    const ended = () => void (--count === 0 && consumer.close().then(resolve))
    const consumer = await rmq.consume({ queue, dlx: true, retry: 'list(200ms)' }, async (msg) => {
      console.log(`${msg.messageId} costs ${price(msg.json<Order>(), fixed)}`)
      ended()
    })
    consumer.on('parked', ended)
    if (fixed) return
    for (const [messageId, order] of Object.entries(orders)) await rmq.publish(queue, JSON.stringify(order), { messageId })
  })
}

setLogger(false)
const rmq = await connect()
await consume(rmq, false, 3)

for await (const it of rmq.parked(queue)) {
  console.log(`parked ${it.message.messageId}: ${it.errorType} after attempt ${it.attempts}, ${it.message.text()}`)
  console.log(`  ${it.stack?.split('\n')[1]?.trim()}`)
  if (it.message.json<Order>().price < 1) await it.drop() // not worth it
  else await it.replay() // back to the tail of its queue, counted from the start
}

await consume(rmq, true, 1)
await rmq.close()
