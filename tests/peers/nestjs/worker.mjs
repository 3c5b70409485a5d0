// NestJS's microservice on RabbitMQ, with manual acknowledgement as its documentation shows it. It has no retries of its own; what
// throws before the acknowledgement is neither acknowledged nor given back.

import 'reflect-metadata'

import { Module } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { Ctx, EventPattern, Payload, RmqContext, Transport } from '@nestjs/microservices'

import { handle, PREFETCH, QUEUE, URL } from './order.mjs'

class Orders {
  async pay(order, context) {
    await handle(order)
    context.getChannelRef().ack(context.getMessage())
  }
}
// Decorators, written out, because this is JavaScript.
const decorate = (decorators, of, name) => Reflect.decorate(decorators, of, name, name && Object.getOwnPropertyDescriptor(of, name))
Reflect.defineMetadata('design:paramtypes', [Object, RmqContext], Orders.prototype, 'pay')
Payload()(Orders.prototype, 'pay', 0)
Ctx()(Orders.prototype, 'pay', 1)
decorate([EventPattern('order')], Orders.prototype, 'pay')
const { Controller } = await import('@nestjs/common')
Controller()(Orders)
class App {}
Module({ controllers: [Orders] })(App)

const app = await NestFactory.createMicroservice(App, {
  transport: Transport.RMQ,
  options: {
    urls: [URL],
    queue: QUEUE,
    queueOptions: { durable: true, arguments: { 'x-queue-type': 'quorum' } },
    noAck: false,
    prefetchCount: PREFETCH,
  },
})
await app.listen()
