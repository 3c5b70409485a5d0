// What is there after everything was closed, as a test runner that looks for open handles sees it. Nothing is collected meanwhile.

import { createHook } from 'node:async_hooks'
import { setTimeout as sleep } from 'node:timers/promises'

import { connect, fixed, setLogger } from 'retryrmq'

setLogger(false)

const [queue, refused] = process.argv.slice(2)
console.log('begun') // makes handles for the output
/** What comes and goes with every promise and every turn of the event loop. */
const passing = ['PROMISE', 'TickObject', 'Immediate', 'Microtask']
const alive = new Map()
createHook({
  init: (id, type) => void (passing.includes(type) || alive.set(id, type)),
  destroy: (id) => void alive.delete(id),
}).enable()

for (let round = 0; round < 2; round++) {
  await connect(refused).catch(({ code }) => console.log(code))
  const { username: user, password } = new URL(process.env.RETRYRMQ_URL)
  const rmq = await connect(undefined, { credentials: async () => ({ user, password }) })
  const handled = []
  const options = { queue, dlx: true, retry: fixed('50ms', { retries: 0 }), handlerTimeout: '10m', onEvent: () => {} }
  const consumer = await rmq.consume(options, async (msg, { signal }) => {
    handled.push(signal)
    if (msg.text() === 'fails') throw new Error('no')
  })
  await rmq.consume({ queue, dlx: true, concurrency: 1 }, () => void handled.push(1))
  // One that never ends leaves nothing either.
  const hangs = `${queue}.hangs`
  const hanging = { queue: hangs, workQueue: {}, dlx: true, retry: fixed('50ms', { retries: 0 }), handlerTimeout: 50 }
  await rmq.consume(hanging, () => (handled.push(0), new Promise(() => {})))
  await rmq.publish(hangs, 'hangs')
  for (const text of ['works', 'fails', 'works', 'fails']) await rmq.publish(queue, text)
  while (handled.length < 5) await sleep(10)
  for await (const it of rmq.parked(queue)) await it.drop()
  if (round === 0) await consumer.close()
  await rmq.close()
  console.log(`closed, listeners: ${process.listenerCount('beforeExit')}`)
}
// Node ends a handle in its own time.
const deadline = Date.now() + 60_000
while (alive.size > 0 && Date.now() < deadline) await new Promise((resolve) => setImmediate(resolve))
console.log(`left: ${[...new Set(alive.values())].sort().join(' ')}`)
