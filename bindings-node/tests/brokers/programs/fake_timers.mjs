// Consumes while the timers of a test are fake: an attempt fails, one takes too long, and one succeeds.

import { mock } from 'node:test'

import sinon from '@sinonjs/fake-timers'
import { connect, fixed } from 'retryrmq'

const [queue, kind] = process.argv.slice(2)
if (kind === 'node:test') mock.timers.enable({ apis: ['setTimeout', 'setInterval', 'setImmediate', 'Date'] })
else if (kind === 'sinon') sinon.install()

const rmq = await connect()
const seen = []
let handled
const done = new Promise((resolve) => (handled = resolve))
const options = { queue, dlx: true, retry: fixed('50ms', { retries: 5 }), handlerTimeout: '1s', onEvent: ({ name }) => seen.push(name) }
await rmq.consume(options, async (msg) => {
  if (msg.attempt === 1) throw new Error('no')
  if (msg.attempt === 2) return new Promise(() => {})
  handled()
})
await rmq.publish(queue, 'x')
await done
await rmq.close()
console.log(seen.join(' '))
