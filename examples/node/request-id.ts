// A request id goes from the publisher through the message into the log of the handler.

import { connect, setLogger } from 'retryrmq'
// ANCHOR: middleware
import { AsyncLocalStorage } from 'node:async_hooks'
import { randomUUID } from 'node:crypto'

import type { Middleware, PublishMiddleware } from 'retryrmq'

const requests = new AsyncLocalStorage<string>()

const sendRequestId: PublishMiddleware = (publish, next) => {
  publish.headers['x-request-id'] ??= requests.getStore() ?? randomUUID()
  return next()
}
const takeRequestId: Middleware = (msg, next) => requests.run(String(msg.headers['x-request-id']), next)

const log = (text: string) => console.log(`[${requests.getStore()}] ${text}`)
// ANCHOR_END: middleware

setLogger(false)
const queue = 'example.request-id'
// ANCHOR: connect
const rmq = await connect(undefined, { middleware: [takeRequestId], publishMiddleware: [sendRequestId] })
// ANCHOR_END: connect
let done = () => {}
const handled = new Promise<void>((resolve) => (done = resolve))
await rmq.consume({ queue, dlx: true, retry: 'fixed(250ms)' }, async (msg) => {
  log(`attempt ${msg.attempt} of order ${msg.text()}`)
  if (msg.attempt === 1) throw new Error('the warehouse is closed')
  done()
})
await requests.run('request-4711', () => rmq.publish(queue, '7'))
await handled
await rmq.close()
