// An application in NestJS whose handlers wait for SIGCONT. From then on they end, but not all of them.

import { once } from 'node:events'

import { Injectable, Scope } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { RetryConsume, RetryRmqModule } from 'retryrmq/nestjs'

import { decorated, method, module, parameters, silent } from '../../nestjs/nest.mjs'

const [queue, concurrency, scope = 'DEFAULT'] = process.argv.slice(2)
const heard = once(process, 'SIGCONT')
/** So many end; the others hang. */
const MOST = 12
let ended = 0

class Database {
  open = true
  onModuleDestroy() {
    this.open = false
    console.log('closed')
  }
}

class Orders {
  constructor(database) {
    this.database = database
  }
  async handle(id) {
    console.log(`began ${id}`)
    await heard
    if (++ended > MOST) await new Promise(() => {})
    if (!this.database.open) throw new Error('the database is closed')
    console.log(`ended ${id}`)
  }
}
parameters(Orders, 'constructor', Database)
decorated(Orders, Injectable({ scope: Scope[scope] }))
method(Orders, 'handle', RetryConsume(queue, { dlx: true, concurrency: Number(concurrency), keepAlive: true }))

// In a module of its own, and far away: such modules are destroyed before those that are nearer to the root.
const Databases = module({ providers: [Database], exports: [Database] })
const Feature = module({ imports: [Databases], providers: [Orders] })
const App = module({ imports: [RetryRmqModule.forRoot(), Feature] })
const app = await NestFactory.createApplicationContext(App, { logger: silent })
app.enableShutdownHooks()
process.once('SIGTERM', () => console.log('draining'))
console.log('ready')
