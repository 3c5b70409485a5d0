// A service that publishes orders, consumes them, and drains when it is stopped.

import 'reflect-metadata'

import { Body, Controller, Get, HttpCode, Logger, Module, Post } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { HealthCheck, HealthCheckService, TerminusModule } from '@nestjs/terminus'
import { setLogger } from 'retryrmq'
import { RetryRmqHealthIndicator, RetryRmqModule, RetryRmqPublisher } from 'retryrmq/nestjs'

import { Order, OrdersModule } from './orders.js'

// ANCHOR: publisher
@Controller('orders')
class OrdersController {
  constructor(private readonly rmq: RetryRmqPublisher) {}

  @Post()
  @HttpCode(202)
  async order(@Body() order: Order): Promise<void> {
    await this.rmq.publish('orders', order, { messageId: `order-${order.id}` }) // the broker has it
  }
}
// ANCHOR_END: publisher

// ANCHOR: health
@Controller('health')
class HealthController {
  constructor(
    private readonly health: HealthCheckService,
    private readonly rabbitmq: RetryRmqHealthIndicator,
  ) {}

  @Get()
  @HealthCheck()
  check() {
    return this.health.check([() => this.rabbitmq.isHealthy('rabbitmq')])
  }
}
// ANCHOR_END: health

// ANCHOR: logger
const log = new Logger('retryrmq')
setLogger({
  debug: (text) => log.debug(text),
  info: (text) => log.log(text),
  warn: (text) => log.warn(text),
  error: (text) => log.error(text),
})
// ANCHOR_END: logger

// ANCHOR: main
@Module({
  imports: [RetryRmqModule.forRoot(), OrdersModule, TerminusModule], // at RETRYRMQ_URL, or amqp://localhost
  controllers: [OrdersController, HealthController],
})
class AppModule {}

const app = await NestFactory.create(AppModule, { logger: ['error', 'warn'] })
app.enableShutdownHooks() // SIGTERM drains
await app.listen(Number(process.env.PORT ?? 0), '127.0.0.1')
console.log(`listening on ${await app.getUrl()}`)
// ANCHOR_END: main
