// A handler that never ends, with a time limit far away; the consumer ends without it.

import { connect } from 'retryrmq'

const [queue, how] = process.argv.slice(2)
const rmq = await connect()
const options = { queue, dlx: true, handlerTimeout: '10m', drainTimeout: '100ms' }
const consumer = await rmq.consume(options, async () => {
  console.log('began')
  setImmediate(async () => {
    if (how === 'stop') consumer.stop()
    await rmq.close()
    console.log('closed')
  })
  await new Promise(() => {})
})
process.on('exit', () => console.log('bye'))
