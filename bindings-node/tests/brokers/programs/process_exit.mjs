// A handler that ends the process.

import { connect } from 'retryrmq'

const [queue] = process.argv.slice(2)
const rmq = await connect()
await rmq.consume({ queue, dlx: true }, (msg) => {
  console.log(msg.text())
  if (msg.text() === '3') process.exit(7)
})
