// A consumer in NestJS: it starts when everything else is ready, and drains before anything that its handler uses is closed.

import 'reflect-metadata'
import { setTimeout as sleep } from 'node:timers/promises'

import {
  Inject,
  Injectable,
  Module,
  type OnApplicationBootstrap,
  type OnApplicationShutdown,
  type OnModuleDestroy,
  type OnModuleInit,
} from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { connect, type Client, type Consumer, type Message } from 'retryrmq'

const queue = 'example.nest'

// Any provider that the handler needs.
@Injectable()
class Database implements OnModuleDestroy {
  #open = true

  async ship(order: string): Promise<void> {
    console.log(`shipping ${order}`)
    await sleep(1000)
    if (!this.#open) throw new Error('the database is closed')
  }

  onModuleDestroy(): void {
    this.#open = false
    console.log('the database is closed')
  }
}

@Injectable()
class Orders implements OnModuleInit, OnApplicationBootstrap, OnModuleDestroy, OnApplicationShutdown {
  readonly #database: Database
  #rmq!: Client
  #consumer: Consumer | undefined

  constructor(@Inject(Database) database: Database) {
    this.#database = database
  }

  async onModuleInit(): Promise<void> {
    this.#rmq = await connect()
  }

  // Last: every provider is ready.
  async onApplicationBootstrap(): Promise<void> {
    const options = { queue, dlx: true, retry: 'fixed(500ms, retries=3)' }
    this.#consumer = await this.#rmq.consume(options, (msg) => this.handle(msg))
  }

  async handle(msg: Message): Promise<void> {
    if (msg.attempt === 1) throw new Error('the warehouse is closed')
    await this.#database.ship(msg.text())
    console.log(`shipped ${msg.text()}, attempt ${msg.attempt}`)
  }

  async publish(order: string): Promise<void> {
    await this.#rmq.publish(queue, order)
  }

  // First: Nest destroys a provider before those that it injects, and answers requests meanwhile.
  async onModuleDestroy(): Promise<void> {
    await this.#consumer?.close() // handlers finish, and everything is settled
    console.log('drained')
  }

  // After the last request, which may publish.
  async onApplicationShutdown(): Promise<void> {
    await this.#rmq?.close()
  }
}

@Module({ providers: [Database, Orders] })
class App {}

const app = await NestFactory.createApplicationContext(App, { logger: ['error', 'warn'] })
app.enableShutdownHooks() // SIGTERM stops it
await app.get(Orders).publish('order-7')
