// Lets go of its consumer while it handles the last message, and ends by itself: on this thread or on one of its own.

import { setTimeout as sleep } from 'node:timers/promises'
import { Worker, isMainThread, workerData } from 'node:worker_threads'

import { connect, setLogger } from 'retryrmq'

const [mode, url, queue, last, thread] = isMainThread ? process.argv.slice(2) : workerData
setLogger(false)

if (isMainThread && thread !== undefined) {
  new Worker(new URL(import.meta.url), { workerData: [mode, url, queue, last, thread] })
} else {
  const handlers = {
    succeeds: () => {},
    fails: () => {
      throw new Error('not this time')
    },
    // Nothing that keeps the process alive.
    finishes: async () => {
      await sleep(500, undefined, { ref: false })
      console.log('finished')
    },
    publishes: (msg) => void rmq.publish(last, msg.text()),
  }
  const rmq = await connect(url)
  let handled = 0
  const options = { queue, dlx: true, retry: 'fixed(100ms, retries=3)' }
  const consumer = await rmq.consume(options, (msg) => {
    if (++handled === Number(mode === 'publishes' ? 1 : last)) consumer.unref()
    return handlers[mode](msg)
  })
  console.log('consuming')
}
