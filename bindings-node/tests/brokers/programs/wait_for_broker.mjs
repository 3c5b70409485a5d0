// Waits for a broker that does not come, on a thread of its own or here.

import { Worker, isMainThread, workerData } from 'node:worker_threads'

import { connect, setLogger } from 'retryrmq'
import { liveObjects } from 'retryrmq/testing'

const [url, mode] = isMainThread ? process.argv.slice(2) : [workerData.url]
const quiet = () => {}
setLogger({ error: quiet, warn: () => console.log('waiting'), info: quiet, debug: quiet })

if (mode === 'thread') {
  const worker = new Worker(new URL(import.meta.url), { workerData: { url } })
  while ((liveObjects().operations ?? 0) === 0) await new Promise((resolve) => setTimeout(resolve, 10))
  await worker.terminate()
  while (liveObjects().operations > 0) await new Promise((resolve) => setTimeout(resolve, 10))
  console.log('gone')
} else {
  await connect(url, { wait: true })
}
