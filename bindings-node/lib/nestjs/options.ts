/** What users write: the decorator, the options, and the tokens to inject. */

import { Inject, SetMetadata } from '@nestjs/common'
import { Ctx, Payload } from '@nestjs/microservices'

import { Client, type ConnectOptions } from '../client.js'
import type { Message } from '../message.js'
import type { ConsumerOptions } from '../options.js'
import type { RetryRmqContext } from './context.js'
import { RetryRmqHealthIndicator } from './health.js'
import { RetryRmqPublisher } from './publisher.js'

/** A pattern as in `@EventPattern` and `@MessagePattern`. */
export type Pattern = string | { readonly [key: string]: unknown }

/** What consumers of a module have in common. */
export interface ConsumeDefaults extends Omit<ConsumerOptions, 'queue' | 'batch' | 'batchWait' | 'signal'> {
  /**
   * Which errors no retry can fix, so that the message is parked at once as `fatal`; needs `dlx`. The default is {@link isFatal}. Classes in `fatal`
   * are so in any case.
   */
  isFatal?: ((error: unknown, context: RetryRmqContext) => boolean) | undefined
  /**
   * Reads a body that is not JSON. By default a body is JSON, in the `{ pattern, data }` of Nest's clients or plain. If it throws, the message
   * is parked as `undecodable`.
   */
  decode?: ((message: Message) => unknown) | undefined
}

/** The options of {@link RetryConsume}: those of `consume`, and some of Nest's. */
export interface RetryConsumeOptions extends ConsumeDefaults {
  /**
   * The messages of the queue that this method handles: those with this pattern in their `{ pattern, data }`, or with this routing key if they
   * are plain. By default all for which the queue has no other method.
   */
  pattern?: Pattern | undefined
  /** The `name` of the client, if the application has several. */
  client?: string | undefined
}

/** The options of `RetryRmqModule.forRoot`: those of `connect`, and some of Nest's. */
export interface RetryRmqModuleOptions extends ConnectOptions {
  /** The broker; `RETRYRMQ_URL`, or `amqp://localhost`, by default. */
  url?: string | readonly string[] | undefined
  /** A name, if the application has several clients. */
  name?: string | undefined
  /** Options for all consumers of this client; those of a {@link RetryConsume} come first. */
  defaults?: ConsumeDefaults | undefined
}

/** A method that consumes. @internal */
export interface Consuming extends RetryConsumeOptions {
  queue: string
}

const CONSUMES = 'retryrmq:consumes'
/** Where Nest keeps the parameters of a method that have a decorator. @internal */
export const PARAMETERS = '__routeArguments__'

/** Has Nest make global guards and the like in the scope of a request also for messages of this class. */
const ENTRY = '__entryProvider__'

// Of `reflect-metadata`, which Nest loads.
const metadata = Reflect as unknown as { getMetadata(key: string, target: object, property?: string | symbol): unknown }

/**
 * The method handles messages of `queue`. It may be of a provider or a controller.
 *
 *     @RetryConsume('orders', { dlx: true, retry: 'exponential(1s, retries=5)' })
 *     async handle(@Payload() order: Order, @Ctx() context: RetryRmqContext) {}
 *
 * If it returns, the message is acknowledged; if it throws, the message is retried. A returned Observable ends as it completes or fails, with
 * its last value. Without `@Payload()` and `@Ctx()` the parameters are the payload and the context.
 */
export function RetryConsume(queue: string, options: RetryConsumeOptions = {}): MethodDecorator {
  return (target, key, descriptor) => {
    const others = consumedBy(descriptor.value)
    SetMetadata(ENTRY, true)(target.constructor)
    SetMetadata(CONSUMES, [...others, { ...options, queue }])(target, key, descriptor)
    // As for Nest's own message handlers, so that pipes see the payload.
    if (metadata.getMetadata(PARAMETERS, target.constructor, key) !== undefined) return
    Payload()(target, key, 0)
    Ctx()(target, key, 1)
  }
}

/** What a method consumes. @internal */
export function consumedBy(method: unknown): readonly Consuming[] {
  if (typeof method !== 'function') return []
  return (metadata.getMetadata(CONSUMES, method) as readonly Consuming[] | undefined) ?? []
}

/** The token of a client: the class `Client` itself, unless it has a name. */
export function getClientToken(name?: string): typeof Client | string {
  return name === undefined ? Client : `RetryRmqClient:${name}`
}

/** The token of a publisher: the class {@link RetryRmqPublisher}, unless its client has a name. */
export function getPublisherToken(name?: string): typeof RetryRmqPublisher | string {
  return name === undefined ? RetryRmqPublisher : `RetryRmqPublisher:${name}`
}

/** The token of a health indicator: the class {@link RetryRmqHealthIndicator}, unless its client has a name. */
export function getHealthToken(name?: string): typeof RetryRmqHealthIndicator | string {
  return name === undefined ? RetryRmqHealthIndicator : `RetryRmqHealthIndicator:${name}`
}

/** Injects the `Client` of this name. */
export const InjectClient = (name?: string): ParameterDecorator & PropertyDecorator => Inject(getClientToken(name))

/** Injects the {@link RetryRmqPublisher} of the client of this name. */
export const InjectPublisher = (name?: string): ParameterDecorator & PropertyDecorator => Inject(getPublisherToken(name))
