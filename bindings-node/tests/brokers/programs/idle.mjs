// Consumes and has nothing else to do.

import { connect } from 'retryrmq'

const [queue, how] = process.argv.slice(2)
const options = { queue, dlx: false } // its log is empty
if (how === 'keepAlive') options.keepAlive = false
const rmq = await connect()
const consumer = await rmq.consume(options, (msg) => console.log(`handled ${msg.text()}`))
if (how === 'unref') console.log(consumer.unref().unref() === consumer)
if (how === 'ref') consumer.unref().ref().ref()
console.log('consuming')
if (how === 'stop') {
  consumer.stop()
  void consumer.closed.then(() => console.log('stopped'))
}
if (how === 'close') {
  await consumer.close()
  consumer.ref()
  console.log('closed')
}
process.on('exit', () => console.log('bye'))
