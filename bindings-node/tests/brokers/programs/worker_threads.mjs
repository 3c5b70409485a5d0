// Worker threads: some drain, some are terminated in the middle of their work, again and again.

import { fileURLToPath } from 'node:url'
import { Worker, isMainThread, parentPort, workerData } from 'node:worker_threads'

const [queue, mode] = process.argv.slice(2)

if (isMainThread) {
  // In this mode the main thread loads the package as well; otherwise only threads do, and they come and go.
  if (mode === 'main-too') await import('retryrmq')
  for (let round = 0; round < 3; round++) {
    const threads = ['drain', 'terminate', 'exit'].map((how) => {
      const worker = new Worker(fileURLToPath(import.meta.url), { workerData: { queue, how } })
      return new Promise((resolve, reject) => {
        worker.on('error', reject)
        worker.on('message', () => how === 'terminate' && worker.terminate())
        worker.on('exit', resolve)
      })
    })
    await Promise.all(threads)
  }
  console.log('all threads ended')
} else {
  const { connect, setLogger } = await import('retryrmq')
  setLogger(false)
  const { queue, how } = workerData
  const rmq = await connect()
  let count = 0
  await rmq.consume({ queue, dlx: true, concurrency: 2 }, async (msg) => {
    if (++count === 5) {
      if (how === 'drain') return void rmq.close()
      if (how === 'exit') process.exit()
      parentPort.postMessage('enough')
    }
    await new Promise((resolve) => setTimeout(resolve, 2))
  })
}
