// A method that consumes, and what it needs.

import { Controller, Injectable, Module, type OnModuleDestroy, UsePipes, ValidationPipe } from '@nestjs/common'
import { Ctx, Payload, RpcException } from '@nestjs/microservices'
import { IsInt, IsString } from 'class-validator'
import { RetryConsume, type RetryRmqContext } from 'retryrmq/nestjs'

export class Order {
  @IsInt() id!: number
  @IsString() item!: string
}

@Injectable()
export class Warehouse implements OnModuleDestroy {
  #isOpen = true

  ship(order: Order): string {
    if (!this.#isOpen) throw new Error('the warehouse is closed')
    console.log(`shipping ${order.id}`)
    return `parcel-${order.id}`
  }

  onModuleDestroy(): void {
    this.#isOpen = false
    console.log('the warehouse closes')
  }
}

// ANCHOR: consumer
@Injectable()
export class OrdersConsumer {
  constructor(private readonly warehouse: Warehouse) {}

  @RetryConsume('orders', { dlx: true, retry: 'exponential(500ms, retries=5)', handlerTimeout: '30s' })
  @UsePipes(new ValidationPipe({ transform: true })) // an invalid order is parked at once
  async ship(@Payload() order: Order, @Ctx() context: RetryRmqContext): Promise<string> {
    if (order.item === 'unicorn') throw new RpcException('no unicorns') // the reply, if somebody waits for one
    if (order.item === 'chair' && context.attempt < 3) throw new Error('no chairs today') // retried
    if (order.item === 'table') context.park('tables need a truck: call the carrier') // parked now
    return this.warehouse.ship(order) // the reply, if the publisher waits for one
  }
}
// ANCHOR_END: consumer

// ANCHOR: patterns
@Controller()
export class Billing {
  // Was: @EventPattern('order.created')
  @RetryConsume('billing', { dlx: true, pattern: 'order.created' })
  created(@Payload() order: { id: number }): void {
    console.log(`an invoice for ${order.id}`)
  }

  // Was: @MessagePattern({ cmd: 'sum' }). A queue has one set of options, which one of its methods gives.
  @RetryConsume('billing', { pattern: { cmd: 'sum' } })
  sum(@Payload() prices: number[]): number {
    return prices.reduce((sum, price) => sum + price, 0)
  }
}
// ANCHOR_END: patterns

@Module({ providers: [OrdersConsumer, Warehouse], controllers: [Billing] })
export class OrdersModule {}
