// Another service, with the client of Nest itself: it emits events, and sends requests.

import 'reflect-metadata'

import { Logger } from '@nestjs/common'
import { ClientProxyFactory, Transport } from '@nestjs/microservices'
import { firstValueFrom, timeout } from 'rxjs'

Logger.overrideLogger(['error', 'warn'])

// ANCHOR: client
const clientOf = (queue: string) =>
  ClientProxyFactory.create({
    transport: Transport.RMQ,
    options: {
      urls: [process.env.RETRYRMQ_URL ?? 'amqp://localhost'],
      queue,
      noAssert: true, // the queue is there, with whatever arguments
      persistent: true, // or a message is gone if its classic queue's node restarts
    },
  })
const [orders, billing] = [clientOf('orders'), clientOf('billing')]

await firstValueFrom(orders.emit('ship', { id: 1, item: 'lamp' }), { defaultValue: undefined })
// The reply comes after the last attempt, so it may take as long as all retries.
console.log(await firstValueFrom(orders.send('ship', { id: 2, item: 'chair' }).pipe(timeout(60_000))))
const { message } = await firstValueFrom(orders.send('ship', { id: 3, item: 'unicorn' })).catch((error: { message: string }) => error)
console.log(message)
// ANCHOR_END: client
await firstValueFrom(billing.emit('order.created', { id: 1 }), { defaultValue: undefined })
console.log(await firstValueFrom(billing.send({ cmd: 'sum' }, [1, 2, 3])))

await orders.close()
await billing.close()
