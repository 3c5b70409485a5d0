// retryrmq, with everything else left as it comes.

import { connect } from 'retryrmq'

import { DELAY_MS, handle, PREFETCH, QUEUE, RETRIES, URL } from './order.mjs'

const rmq = await connect(URL)
await rmq.consume({ queue: QUEUE, dlx: true, retry: `fixed(${DELAY_MS}ms, retries=${RETRIES})`, prefetch: PREFETCH }, (message) =>
  handle(message.body),
)
await rmq.run()
