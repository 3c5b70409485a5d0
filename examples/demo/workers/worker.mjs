// One of the demo's workers: an order fails at its first attempt, and wherever it failed last.

import { connect } from 'retryrmq'

const rmq = await connect()

await rmq.consume(
  { queue: process.argv[2], dlx: true, retry: 'fixed(500ms, retries=20)', prefetch: 1, concurrency: 1 },
  async (msg) => {
    const handled = msg.attempt > 1 && !msg.lastError?.startsWith('node:')
    console.log(`${msg.messageId} ${msg.attempt} ${handled ? 'handled' : 'failed'}`)
    if (!handled) throw Object.assign(new Error('node: not here'), { name: 'NotHere' })
  },
)
console.log('ready')
await rmq.run()
