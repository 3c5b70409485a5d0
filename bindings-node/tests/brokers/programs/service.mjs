// A service: handles until it is told to end, and drains.

import { setTimeout as sleep } from 'node:timers/promises'

import { connect } from 'retryrmq'

const [queue, takes = '500'] = process.argv.slice(2)
const rmq = await connect()
await rmq.consume({ queue, dlx: true }, async (msg) => {
  console.log(`began ${msg.text()}`)
  await sleep(Number(takes))
  console.log(`ended ${msg.text()}`)
})
const running = rmq.run()
console.log('running') // from here on signals are heard
await running
console.log('drained')
