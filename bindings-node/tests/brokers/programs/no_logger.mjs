// Fails at a message, with no logger.

import { connect, fixed } from 'retryrmq'

const [queue] = process.argv.slice(2)
const rmq = await connect()
const options = { queue, dlx: true, retry: fixed('50ms', { retries: 0 }) }
const consumer = await rmq.consume(options, () => {
  throw new Error('no')
})
consumer.once('parked', () => rmq.close())
