// Two consumers are told of their messages at once, and the first one's turn throws: the second one handles its own.

import { createRequire } from 'node:module'
import path from 'node:path'

import { connect } from 'retryrmq'

const queues = process.argv.slice(2)
const require = createRequire(import.meta.url)
const { native } = require(path.join(path.dirname(require.resolve('retryrmq')), 'native.js'))
process.on('uncaughtException', (error) => console.log(`survived ${error.message}`))

const rmq = await connect()
const handled = []
const consumers = []
for (const queue of queues) {
  consumers.push(await rmq.consume({ queue, dlx: true }, (msg) => void handled.push(msg.text())))
}
// Until all of them listen.
await new Promise((resolve) => setTimeout(resolve, 300))
const original = native.Subscription.prototype.take
let armed = true
native.Subscription.prototype.take = function (...args) {
  if (!armed) return original.apply(this, args)
  armed = false
  throw new Error('once')
}
// Published from another process would come one after the other; so nothing is read until all are there.
const publishing = queues.map((queue) => rmq.publish(queue, queue))
for (const end = Date.now() + 2000; Date.now() < end; );
await Promise.all(publishing)
while (handled.length < queues.length) await new Promise((resolve) => setTimeout(resolve, 10))
console.log(`handled ${handled.length}`)
await rmq.close()
