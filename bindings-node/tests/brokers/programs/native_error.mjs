// The native half throws once, in the middle of the work, and the process goes on: all messages are handled, once.

import { createRequire } from 'node:module'
import path from 'node:path'

import { connect } from 'retryrmq'

const [queue, method] = process.argv.slice(2)
const require = createRequire(import.meta.url)
const { native } = require(path.join(path.dirname(require.resolve('retryrmq')), 'native.js'))
const original = native.Subscription.prototype[method]
let thrown = false
native.Subscription.prototype[method] = function (...args) {
  // What was to be taken is left where it is; what was to be settled is settled.
  if (thrown || (method === 'settle' && args[1] === 0)) return original.apply(this, args)
  thrown = true
  if (method === 'settle') original.apply(this, args)
  throw new Error('once')
}
process.on('uncaughtException', (error) => console.log(`survived ${error.message}`))

const rmq = await connect()
const consumer = await rmq.consume({ queue, dlx: true }, () => {})
while (consumer.stats().acked < 100) await new Promise((resolve) => setTimeout(resolve, 20))
await consumer.close()
const { acked, stale } = consumer.stats()
console.log(`acked ${acked}, stale ${stale}`)
await rmq.close()
