// Handles one message of a queue, which fails once and comes back: consumer.mjs QUEUE

import { connect } from 'retryrmq'

const rmq = await connect()
await rmq.consume({ queue: process.argv[2], dlx: true, retry: 'fixed(100ms, retries=3)' }, (msg) => {
  console.log(`attempt ${msg.attempt} of ${msg.text()}`)
  if (msg.attempt === 1) throw new Error('the database is restarting')
  void rmq.close()
})
