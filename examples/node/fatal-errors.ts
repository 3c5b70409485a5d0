// Errors that a retry cannot fix: the message is parked at once.

import { connect, park, setLogger, type Parked } from 'retryrmq'

class UnknownCustomer extends Error {}

const queue = 'example.fatal'
const orders = {
  garbage: 'not json',
  unknown: '{"customer": 0, "total": 5}',
  negative: '{"customer": 1, "total": -5}',
  unlucky: '{"customer": 1, "total": 5}',
}

setLogger(false) // the events say it all
const rmq = await connect()
let parked = 0

const consumer = await rmq.consume(
  { queue, dlx: true, retry: 'fixed(500ms, retries=2)', fatal: [SyntaxError, UnknownCustomer] },
  async (msg) => {
    const order = msg.json<{ customer: number; total: number }>() // throws SyntaxError if it is not JSON
    if (order.customer === 0) throw new UnknownCustomer('nobody has the number 0')
    if (order.total < 0) throw park('a negative total: ask the customer')
    throw new Error('the database is restarting') // worth another try
  },
)

const allParked = new Promise<void>((resolve) => {
  consumer.on('parked', ({ messageId, attempt, reason, error }: Parked) => {
    console.log(`${messageId} is parked after attempt ${attempt}, ${reason}: ${error}`)
    if (++parked === Object.keys(orders).length) resolve()
  })
})

for (const [messageId, body] of Object.entries(orders)) await rmq.publish(queue, body, { messageId })
await allParked
await consumer.close()

for await (const it of rmq.parked(queue)) {
  const { messageId, history } = it.message
  console.log(`drop ${messageId}: ${it.errorType || 'no type'}, attempts: ${history.length}`)
  await it.drop()
}
await rmq.close()
