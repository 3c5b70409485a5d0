// A service whose handler publishes at its end, which comes after the service was told to end.

import { setTimeout as sleep } from 'node:timers/promises'

import { connect } from 'retryrmq'

const [queue, results] = process.argv.slice(2)
const rmq = await connect()
await rmq.consume({ queue, dlx: true }, async (msg) => {
  console.log('began')
  await sleep(500)
  await rmq.publish(results, `result of ${msg.text()}`)
  console.log(`published at attempt ${msg.attempt}`)
})
const running = rmq.run()
console.log('running')
await running
console.log('drained')
