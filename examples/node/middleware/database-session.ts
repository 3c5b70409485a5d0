// Each attempt has a transaction, which is rolled back if the attempt fails. PGlite is Postgres in this process.

import { PGlite } from '@electric-sql/pglite'
import { connect, setLogger } from 'retryrmq'
// ANCHOR: middleware
import { AsyncLocalStorage } from 'node:async_hooks'

import type { Transaction } from '@electric-sql/pglite'
import type { Middleware } from 'retryrmq'

const db = await PGlite.create()
const session = new AsyncLocalStorage<Transaction>()

const inTransaction: Middleware = (_, next) => db.transaction((transaction) => session.run(transaction, next))

async function ship(order: string): Promise<void> {
  await session.getStore()?.query('insert into shipments values ($1)', [order])
}
// ANCHOR_END: middleware

setLogger(false)
await db.exec('create table shipments (number text)')
const queue = 'example.session'
const rmq = await connect()
const options = { queue, dlx: true, retry: 'fixed(250ms)', middleware: [inTransaction] }
const consumer = await rmq.consume(options, async (msg) => {
  await ship(msg.text())
  if (msg.attempt === 1) throw new Error('the warehouse is closed')
})
const shipments = async () => (await db.query('select number from shipments')).rows.length
const retried = new Promise<void>((resolve) => {
  consumer.once('retried', async ({ error }) => {
    console.log(`${await shipments()} shipments after: ${error}`)
    resolve()
  })
})
await rmq.publish(queue, 'order-7')
await retried
while ((await shipments()) === 0) await new Promise((resolve) => setTimeout(resolve, 50))
console.log(`${await shipments()} shipment at the end`)
await rmq.close()
await db.close()
