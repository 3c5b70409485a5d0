// A handler gets up to 100 orders at once, and answers for each of them.

import { connect, setLogger } from 'retryrmq'

setLogger(false) // the events say it all
const queue = 'example.batches'
const rmq = await connect()
const orders = Array.from({ length: 250 }, (_, number) => `order-${number}`)
await rmq.consume({ queue, dlx: true }, () => {}).then((consumer) => consumer.close()) // creates the queue
await Promise.all(orders.map((order) => rmq.publish(queue, order, { messageId: order })))

let handled = 0
let done = () => {}
const allHandled = new Promise<void>((resolve) => (done = resolve))
// ANCHOR: handler
async function ship(orders: string[]): Promise<(Error | undefined)[]> {
  return orders.map((order) => (order === 'order-7' ? new Error('the address is missing') : undefined))
}

const options = { queue, dlx: true, retry: 'fixed(250ms, retries=1)', batch: 100, batchWait: '200ms' }
const consumer = await rmq.consume(options, async (messages) => {
  const errors = await ship(messages.map((msg) => msg.text()))
  handled += errors.filter((error) => error === undefined).length
  return errors // one for each message; `undefined` acknowledges it
})
// ANCHOR_END: handler
consumer.on('parked', ({ messageId, attempt, error }) => {
  console.log(`${messageId} is parked after attempt ${attempt}: ${error}`)
  done()
})
await allHandled
// A busy broker may still have some of the others.
while (handled < orders.length - 1) await new Promise((resolve) => setTimeout(resolve, 50))
await consumer.close()
console.log(`${handled} orders are shipped`)
for await (const it of rmq.parked(queue)) await it.drop()
await rmq.close()
