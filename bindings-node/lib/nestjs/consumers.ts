/** Finds the methods that consume, and runs them with pipes, guards, interceptors and filters. */

import { AsyncLocalStorage } from 'node:async_hooks'
import { isDeepStrictEqual } from 'node:util'

import { Logger, type OnApplicationBootstrap, type OnApplicationShutdown, type OnModuleDestroy } from '@nestjs/common'
import { ContextIdFactory, type DiscoveryService, type ExternalContextCreator, MetadataScanner, ModuleRef } from '@nestjs/core'
import { RpcException } from '@nestjs/microservices'

import type { Client } from '../client.js'
import type { Consumer } from '../consumer.js'
import { InvalidOptionError } from '../errors.js'
import type { Message } from '../message.js'
import { type Middleware, outermost } from '../middleware.js'
import type { ConsumerOptions, Context, Handler } from '../options.js'
import { Fatal, isErrorLike, isSignal, undecodable } from '../outcome.js'
import { unfinishedWork } from '../result_check.js'
import { RetryRmqContext } from './context.js'
import { type ConsumeDefaults, type Consuming, PARAMETERS, consumedBy, getClientToken } from './options.js'
import { settled } from './observables.js'
import { type RpcMessage, addValidationMessages, isFatal, patternKey, readRpcMessage } from './rpc_protocol.js'
import { Replies } from './replies.js'

type Wrapper = ReturnType<DiscoveryService['getProviders']>[number]
type ContextId = ReturnType<typeof ContextIdFactory.create>
/** An object with methods. */
type Instance = { [name: string]: unknown }
/** Runs a method with all that Nest has around it. */
type Run = (data: unknown, context: RetryRmqContext) => Promise<unknown>

/** A method that consumes. */
interface Method {
  consuming: Consuming
  run: Run
  /** For errors: its class and its name. */
  name: string
}

/** An attempt that runs. */
interface Running {
  attempt: RetryRmqContext
  rpcMessage: RpcMessage
  /** Why its message could not be read. */
  unreadable?: unknown
  /** What the method has returned. */
  result?: unknown
}

/** A queue with its methods, by the key of their pattern; `undefined` is the method for all other messages. */
interface Queue {
  options: ConsumeDefaults
  methods: Map<string | undefined, Method>
}

/** The parameters of Nest's RPC decorators, by their numbers in `RpcParamtype`, which is not exported. */
const PAYLOAD = 3
const FACTORY = {
  exchangeKeyForValue(type: number, data: unknown, [payload, context]: readonly unknown[]): unknown {
    if (type !== PAYLOAD) return context
    return typeof data === 'string' ? (payload as { [name: string]: unknown } | null | undefined)?.[data] : payload
  },
}

/** What is private in Nest, the same in all supported versions. */
interface Creator {
  handlerMetadataStorage: { constructor: new () => unknown }
  externalErrorProxy: { createProxy(target: (...args: unknown[]) => Promise<unknown>, filters: unknown, type: string): Run }
}

/** The consumers of one client. @internal */
export class RetryRmqConsumers implements OnApplicationBootstrap, OnModuleDestroy, OnApplicationShutdown {
  readonly #client: Client
  readonly #name: string | undefined
  readonly #defaults: ConsumeDefaults
  readonly #discovery: DiscoveryService
  readonly #contexts: ExternalContextCreator
  readonly #running: Consumer[] = []
  readonly #drainedFirst = new WeakSet<object>()
  #draining: Promise<void> | undefined
  readonly #attempts = new AsyncLocalStorage<RetryRmqContext>()
  readonly #log = new Logger('RetryRmq')

  constructor(
    client: Client,
    options: { name?: string | undefined; defaults?: ConsumeDefaults | undefined },
    discovery: DiscoveryService,
    contexts: ExternalContextCreator,
  ) {
    this.#client = client
    this.#name = options.name
    this.#defaults = options.defaults ?? {}
    this.#discovery = discovery
    this.#contexts = contexts
  }

  async onApplicationBootstrap(): Promise<void> {
    const started = await Promise.allSettled([...this.#queues()].map(([name, queue]) => this.#start(name, queue)))
    const failed = started.find((result) => result.status === 'rejected')
    if (failed === undefined) return
    await this.drain()
    throw failed.reason
  }

  /** In case that nothing else in the application has this hook, see `#drainBefore`. */
  async onModuleDestroy(): Promise<void> {
    await this.drain()
  }

  /** After the last request of an HTTP server, which may publish. */
  async onApplicationShutdown(): Promise<void> {
    await this.drain()
    await this.#client.close()
  }

  /** Handlers finish, and their messages are settled; what no handler has begun with is requeued. */
  drain(): Promise<void> {
    this.#draining ??= Promise.allSettled(this.#running.map((consumer) => consumer.close())).then(() => {}) // the client logs errors
    return this.#draining
  }

  async #start(name: string, { options, methods }: Queue): Promise<void> {
    const { decode, isFatal: isFatalHere = isFatal, ...own } = { ...this.#defaults, ...options }
    const first = [...methods.values()][0] as Method
    const consumer: ConsumerOptions = { ...own, queue: name }
    const replies = withMethodName(first.name, () => new Replies(this.#client, consumer, this.#log))
    const running = new WeakMap<Message, Running>()
    const handler: Handler = async (message) => {
      const now = running.get(message) as Running
      if ('unreadable' in now) throw now.unreadable
      const { attempt, rpcMessage } = now
      const method = methods.get(rpcMessage.pattern) ?? methods.get(undefined)
      if (method === undefined) {
        throw undecodable(new RpcException(`no method handles the pattern ${JSON.stringify(rpcMessage.pattern.slice(0, 255))} of ${name}`))
      }
      try {
        return (now.result = await this.#attempts.run(attempt, method.run, rpcMessage.data, attempt))
      } catch (error) {
        addValidationMessages(error)
        throw error
      }
    }
    // What all middleware makes of the attempt decides: the method may succeed, and then its transaction cannot be committed.
    const around: Middleware = async (message, next, context) => {
      const now = newRunning(message, context, decode)
      running.set(message, now)
      const ended = async (): Promise<unknown> => {
        try {
          const value = await next()
          const failure = isSignal(value) ? value : unfinishedWork(value)
          if (failure !== undefined) throw failure
          return now.result
        } catch (error) {
          const isFinal = own.dlx === true && !isSignal(error) && isFatalHere(error, now.attempt)
          throw isFinal ? new Fatal(error) : error
        }
      }
      const { replyTo } = now.rpcMessage
      return replyTo === undefined ? ended() : replies.around(now.attempt, replyTo, ended)
    }
    this.#running.push(await withMethodName(first.name, () => this.#client.consume(consumer, outermost(around, handler))))
  }

  /** All queues with their methods. Throws for what cannot work. */
  #queues(): Map<string, Queue> {
    const queues = new Map<string, Queue>()
    const hosts = [...this.#discovery.getControllers(), ...this.#discovery.getProviders()].filter((host) => !host.isAlias && host.instance)
    if (hosts.filter(({ token }) => token === getClientToken(this.#name)).length > 1) {
      throw new Error(`RetryRmqModule.forRoot was imported twice${this.#name === undefined ? '' : ` as ${this.#name}`}; give each client a \`name\``)
    }
    this.#drainBefore(hosts)
    const seen = new Set<unknown>()
    for (const host of hosts) {
      if (seen.has(host.instance)) continue // one that a factory has returned again
      seen.add(host.instance)
      const prototype = Object.getPrototypeOf(host.instance) as Instance | null
      if (prototype === null || prototype === Object.prototype) continue
      for (const name of new MetadataScanner().getAllMethodNames(prototype)) {
        for (const consuming of consumedBy(prototype[name])) {
          const where = `@RetryConsume('${consuming.queue}') of ${prototype.constructor?.name}.${name}`
          if (consuming.client !== this.#name) this.#checkClient(hosts, consuming, where)
          else this.#add(queues, { consuming, run: this.#withNestContext(host, name), name: where })
        }
      }
    }
    return queues
  }

  #checkClient(hosts: readonly Wrapper[], { client }: Consuming, where: string): void {
    if (hosts.some(({ token }) => token === getClientToken(client))) return
    const [missing, name] = client === undefined ? ['without a name', ''] : [`named ${client}`, `name: '${client}', `]
    throw new Error(`${where}: there is no client ${missing}; import RetryRmqModule.forRoot({ ${name}url: … })`)
  }

  #add(queues: Map<string, Queue>, method: Method): void {
    const { queue, pattern, client: _, ...own } = method.consuming
    if ('batch' in own) throw new InvalidOptionError(`${method.name}: \`batch\` is for \`Client.consume\`; a method handles single messages`)
    const key = pattern === undefined ? undefined : patternKey(pattern)
    const { options, methods } = queues.get(queue) ?? { options: {}, methods: new Map<string | undefined, Method>() }
    const other = methods.get(key)
    if (other !== undefined) {
      throw new Error(`${method.name} and ${other.name} handle the same messages; give each a \`pattern\` of its own`)
    }
    // A queue has one consumer, and so one set of options.
    const differs = Object.entries(own).find(([name, value]) => name in options && !isDeepStrictEqual(value, options[name as keyof typeof own]))
    if (differs !== undefined) {
      throw new InvalidOptionError(`${method.name}: \`${differs[0]}\` differs from another method of ${queue}; give it to one of them only`)
    }
    queues.set(queue, { options: { ...options, ...own }, methods: methods.set(key, method) })
  }

  /** The method with all that Nest has around it. */
  #withNestContext(host: Wrapper, name: string): Run {
    const creator = this.#creator(host)
    const create = (instance: Instance, contextId?: ContextId, id?: string): Run => {
      const method = instance[name] as (...args: unknown[]) => unknown
      const run = creator.create(instance, method, name, PARAMETERS, FACTORY, contextId, id, undefined, 'rpc')
      return run
    }
    if (host.isDependencyTreeStatic() && !host.isTransient) return create(host.instance as Instance)
    return async (data, context) => {
      const request = { pattern: context.pattern, data, context }
      const contextId = ContextIdFactory.getByRequest(request)
      const { payload } = contextId
      const isDurable = host.isDependencyTreeDurable()
      this.#contexts.registerRequestProvider(isDurable ? payload : Object.assign(request, payload), contextId)
      const modules = host.host?.getProviderByKey(ModuleRef).instance as ModuleRef
      const instance = await modules.resolve<Instance>(host.token as string, contextId, { strict: true })
      return create(instance, contextId, host.id)(data, context)
    }
  }

  /** Nest's creator of contexts, which is made for other callers than consumers. */
  #creator(host: Wrapper): ExternalContextCreator {
    const creator = this.#contexts
    const { externalErrorProxy, handlerMetadataStorage } = creator as unknown as Creator
    const createProxy: Creator['externalErrorProxy']['createProxy'] = (target, filters, type) => async (data, context) => {
      try {
        return await target(data, context)
      } catch (error) {
        if (isSignal(error)) throw error // not an exception: a filter of everything would take it for one
        const filtered = externalErrorProxy.createProxy(() => Promise.reject(error as Error), filters, type)
        return filteredResult(error, context, async () => settled(await filtered(data, context), context))
      }
    }
    return Object.assign(Object.create(creator) as ExternalContextCreator, {
      externalErrorProxy: { createProxy },
      // Nest 11 keeps the parameters of methods by the names of class and method, which two classes may share.
      handlerMetadataStorage: new handlerMetadataStorage.constructor(),
      // It looks for providers only, and would skip the guards and other injectables of a controller's module.
      getContextModuleKey: () => host.host?.token ?? '',
      // One without values is a success, and one that outlasts its attempt is stopped.
      transformToResult: async (result: unknown) => settled(result, this.#attempts.getStore()),
    })
  }

  /** Whatever Nest destroys first may be in use by a handler, also by one in the scope of a request: all of it waits for the handlers. */
  #drainBefore(hosts: readonly Wrapper[]): void {
    for (const module of new Set(hosts.map(({ host }) => host))) {
      if (module === undefined) continue
      for (const wrappers of [module.controllers, module.providers, module.injectables, module.middlewares]) {
        for (const wrapper of wrappers.values()) {
          if (wrapper.isTransient) wrapper.getStaticTransientInstances().forEach((made) => this.#destroyAfterDrain(made?.instance))
          else if (wrapper.isDependencyTreeStatic()) this.#destroyAfterDrain(wrapper.instance)
        }
      }
    }
  }

  #destroyAfterDrain(instance: unknown): void {
    const destroy = (instance as Partial<OnModuleDestroy> | null | undefined)?.onModuleDestroy
    if (typeof destroy !== 'function' || instance === this || this.#drainedFirst.has(instance as object)) return
    this.#drainedFirst.add(instance as object)
    const value = async (): Promise<void> => {
      await this.drain()
      await destroy.call(instance)
    }
    Reflect.defineProperty(instance as object, 'onModuleDestroy', { value, configurable: true, writable: true })
  }
}

function newRunning(message: Message, context: Context, decode: ConsumeDefaults['decode']): Running {
  const running = (rpcMessage: RpcMessage): Running => {
    return { attempt: new RetryRmqContext(message, rpcMessage.pattern, rpcMessage.replyTo !== undefined, context), rpcMessage }
  }
  try {
    return running(readRpcMessage(message, decode))
  } catch (unreadable) {
    return { ...running({ pattern: message.routingKey, data: undefined, replyTo: undefined }), unreadable }
  }
}

/** What a filter has made of an exception. If it gives no value, or only a text or an object for the requester, that exception is the failure. */
async function filteredResult(exception: unknown, context: RetryRmqContext, filtered: () => Promise<unknown>): Promise<unknown> {
  let result: unknown
  try {
    result = await filtered()
  } catch (failure) {
    if (failure === exception || isErrorLike(failure)) throw failure
    context.refused = { exception, shown: failure }
  }
  if (result === undefined) throw exception
  return result
}

/** Says in an error which method it is about. */
function withMethodName<T>(where: string, call: () => T): T {
  const about = (error: unknown): never => {
    if (error instanceof Error) error.message = `${where}: ${error.message}`
    throw error
  }
  try {
    const result = call()
    return (result instanceof Promise ? result.catch(about) : result) as T
  } catch (error) {
    return about(error)
  }
}
