// Every failed attempt is an event in Sentry, with its message. Here the events are kept, and printed at the end.

import { connect, setLogger } from 'retryrmq'
// ANCHOR: middleware
import * as Sentry from '@sentry/node'
import { Defer, type Middleware } from 'retryrmq'

const sentry: Middleware = (msg, next) =>
  Sentry.withIsolationScope(async (scope) => {
    scope.setTags({ queue: msg.queue, attempt: msg.attempt })
    scope.setContext('message', { id: msg.messageId, routingKey: msg.routingKey })
    try {
      return await next()
    } catch (error) {
      if (!(error instanceof Defer)) Sentry.captureException(error)
      throw error
    }
  })
// ANCHOR_END: middleware

const events: Sentry.Event[] = []
Sentry.init({
  dsn: 'https://key@sentry.invalid/1',
  beforeSend: (event) => (events.push(event), event),
  transport: (options) => Sentry.createTransport(options, async () => ({ statusCode: 200 })),
})

setLogger(false)
const queue = 'example.sentry'
const rmq = await connect(undefined, { middleware: [sentry] })
let done = () => {}
const handled = new Promise<void>((resolve) => (done = resolve))
await rmq.consume({ queue, dlx: true, retry: 'fixed(250ms)' }, async (msg) => {
  if (msg.attempt === 1) throw new RangeError('the warehouse is closed')
  done()
})
await rmq.publish(queue, '7', { messageId: 'order-7' })
await handled
await rmq.close()
await Sentry.close()
for (const { exception, tags, contexts } of events) {
  const [error] = exception?.values ?? []
  const where = `attempt ${String(tags?.['attempt'])} of ${String(contexts?.['message']?.['id'])} in ${String(tags?.['queue'])}`
  console.log(`${error?.type}: ${error?.value}, ${where}`)
}
