// Pino writes what a line is about as fields of its JSON.

// ANCHOR: logger
import pino from 'pino'
import { setLogger } from 'retryrmq'

// ANCHOR_END: logger
import { connect } from 'retryrmq'

// ANCHOR: logger
setLogger(pino({ level: 'debug' }), { fields: 'first' })
// ANCHOR_END: logger

const queue = 'example.logged'
const rmq = await connect()
const consumer = await rmq.consume({ queue, dlx: true, retry: 'fixed(250ms, retries=0)' }, async () => {
  throw new RangeError('the warehouse is closed')
})
const parked = new Promise((resolve) => consumer.once('parked', resolve))
await rmq.publish(queue, 'x', { messageId: 'order-7' })
await parked
await consumer.close()
for await (const it of rmq.parked(queue)) await it.drop()
await rmq.close()
