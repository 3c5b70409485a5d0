// A handler that fails twice, and a message that comes back until it succeeds. Ends with Ctrl-C.

import { connect } from 'retryrmq'

const rmq = await connect() // at RETRYRMQ_URL, or on this machine

await rmq.consume({ queue: 'orders', dlx: true }, async (msg) => {
  console.log(`attempt ${msg.attempt} of order ${msg.text()}`)
  if (msg.attempt < 3) throw new Error('the database is restarting')
})

await rmq.run()
