// Publishes: `node dist/publish.js QUEUE BODY…`. Ends when the broker has confirmed.

import { connect } from 'retryrmq'

const [queue = 'orders', ...bodies] = process.argv.slice(2)
const rmq = await connect()
for (const body of bodies) await rmq.publish(queue, body)
await rmq.close()
