// Consumes and has nothing else to do: ends by itself, unless it was asked to stay.

import { connect } from 'retryrmq'

const [queue, how] = process.argv.slice(2)
const rmq = await connect()
const consumer = await rmq.consume({ queue, keepAlive: how === 'keepAlive' }, () => {})
console.log('consuming')
if (how === 'stop') {
  consumer.stop()
  void consumer.closed.then(() => console.log('stopped'))
}
process.on('exit', () => console.log('bye'))
