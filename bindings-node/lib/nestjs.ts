/// <reference types="node" preserve="true" />

/**
 * Consumers in NestJS: methods of providers and controllers, with pipes, guards, interceptors and filters.
 *
 *     @Module({ imports: [RetryRmqModule.forRoot('amqp://localhost')], providers: [Orders] })
 *     class AppModule {}
 *
 *     class Orders {
 *       @RetryConsume('orders', { dlx: true })
 *       async handle(@Payload() order: Order, @Ctx() context: RetryRmqContext) {}
 *     }
 *
 * Needs `@nestjs/common`, `@nestjs/core` and `@nestjs/microservices`, version 11 or 12.
 *
 * @packageDocumentation
 */

export { RetryRmqContext } from './nestjs/context.js'
export { RetryRmqHealthIndicator, type RetryRmqHealth } from './nestjs/health.js'
export { RetryRmqModule, type RetryRmqModuleAsyncOptions } from './nestjs/module.js'
export {
  InjectClient,
  InjectPublisher,
  RetryConsume,
  getClientToken,
  getHealthToken,
  getPublisherToken,
  type ConsumeDefaults,
  type Pattern,
  type RetryConsumeOptions,
  type RetryRmqModuleOptions,
} from './nestjs/options.js'
export { isFatal } from './nestjs/rpc_protocol.js'
export { RetryRmqPublisher, type PublisherOptions } from './nestjs/publisher.js'
export { RetryRmqTesting, type PublishedMessage } from './nestjs/testing.js'
