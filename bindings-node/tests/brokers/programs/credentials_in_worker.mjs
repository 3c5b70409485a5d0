// A thread is terminated while its function is asked who logs in: at first, or after a loss, then perhaps with a message that
// is still to be published.

import { once } from 'node:events'
import { Worker, isMainThread, parentPort, workerData } from 'node:worker_threads'

import { connect, setLogger } from 'retryrmq'
import { liveObjects } from 'retryrmq/testing'

const quiet = () => {}
setLogger({ error: quiet, warn: isMainThread ? console.log : quiet, info: quiet, debug: quiet })

if (isMainThread) {
  const [url, user, mode] = process.argv.slice(2)
  // What is logged is told to this thread, while it has a client.
  const own = await connect(url)
  const before = liveObjects()
  const worker = new Worker(new URL(import.meta.url), { workerData: { url, user, mode } })
  if (mode !== 'connecting') {
    await once(worker, 'message')
    console.log('connected')
  }
  await once(worker, 'message')
  await worker.terminate()
  const left = () => Object.entries(liveObjects()).filter(([kind, count]) => kind !== 'notification_queues' && count > (before[kind] ?? 0))
  while (left().length > 0) {
    await new Promise((resolve) => setTimeout(resolve, 10))
    globalThis.gc()
  }
  await own.close()
  console.log('gone')
} else {
  const { url, user, mode } = workerData
  let hangs = mode === 'connecting'
  const credentials = () => {
    if (!hangs) return { user, password: 'old' }
    if (mode === 'publishing') rmq.publish('nowhere', 'x').catch(quiet)
    parentPort.postMessage('asked')
    return new Promise(() => {})
  }
  const rmq = await connect(url, { credentials })
  hangs = true
  parentPort.postMessage('connected')
  setInterval(() => rmq.healthy(), 1000)
}
