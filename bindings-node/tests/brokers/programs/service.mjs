// A service: handles until it is told to end, and drains.

import { setTimeout as sleep } from 'node:timers/promises'

import { connect } from 'retryrmq'

const [queue] = process.argv.slice(2)
const rmq = await connect()
await rmq.consume({ queue, dlx: true }, async (msg) => {
  console.log(`began ${msg.text()}`)
  await sleep(500)
  console.log(`ended ${msg.text()}`)
})
console.log('consuming')
await rmq.run()
console.log('drained')
