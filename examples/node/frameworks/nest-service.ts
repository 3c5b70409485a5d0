// A consumer in NestJS: it lives as long as the application, and drains when that is stopped.

import 'reflect-metadata'

import { Injectable, Module, type OnApplicationShutdown, type OnModuleInit } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { connect, type Client, type Message } from 'retryrmq'

const queue = 'example.nest'

@Injectable()
class Orders implements OnModuleInit, OnApplicationShutdown {
  #rmq: Client | undefined

  async onModuleInit(): Promise<void> {
    this.#rmq = await connect()
    await this.#rmq.consume({ queue, dlx: true, retry: 'fixed(500ms, retries=3)' }, (msg) => this.handle(msg))
  }

  async handle(msg: Message): Promise<void> {
    if (msg.attempt === 1) throw new Error('the warehouse is closed')
    console.log(`shipped ${msg.text()}, attempt ${msg.attempt}`)
  }

  async publish(order: string): Promise<void> {
    await this.#rmq?.publish(queue, order)
  }

  async onApplicationShutdown(): Promise<void> {
    await this.#rmq?.close() // handlers finish, and everything is settled
    console.log('drained')
  }
}

@Module({ providers: [Orders] })
class App {}

const app = await NestFactory.createApplicationContext(App, { logger: ['error', 'warn'] })
app.enableShutdownHooks() // SIGTERM stops it
await app.get(Orders).publish('order-7')
