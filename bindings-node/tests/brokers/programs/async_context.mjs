// Connects for the first time in the context of a request, whose store is not to be kept for ever.

import { AsyncLocalStorage } from 'node:async_hooks'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

import { connect } from 'retryrmq'

setFlagsFromString('--expose-gc')
const gc = runInNewContext('gc')
const storage = new AsyncLocalStorage()

async function request() {
  const store = { request: 1 }
  const rmq = await storage.run(store, () => connect())
  await rmq.close()
  return new WeakRef(store)
}

const store = await request()
const deadline = Date.now() + 60_000
while (store.deref() !== undefined && Date.now() < deadline) {
  await new Promise((resolve) => setTimeout(resolve, 10))
  gc()
}
console.log(store.deref() === undefined ? 'gone' : 'kept')
