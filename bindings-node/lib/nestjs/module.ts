/** The module. */

import { type DynamicModule, type FactoryProvider, Module, type ModuleMetadata } from '@nestjs/common'
import { DiscoveryModule, DiscoveryService, ExternalContextCreator } from '@nestjs/core'

import { Client, connect } from '../client.js'
import { RetryRmqConsumers } from './consumers.js'
import { RetryRmqHealthIndicator } from './health.js'
import { type RetryRmqModuleOptions, getClientToken, getHealthToken, getPublisherToken } from './options.js'
import { RetryRmqPublisher } from './publisher.js'
import { RetryRmqTesting } from './testing.js'

/** Options that are made by a function, with injected arguments. */
export interface RetryRmqModuleAsyncOptions extends Pick<ModuleMetadata, 'imports'> {
  /** A name, if the application has several clients. */
  name?: string | undefined
  /** Makes the options, or only the URL. */
  useFactory: (...args: any[]) => Given | Promise<Given>
  /** The tokens of its arguments. */
  inject?: FactoryProvider['inject']
}

type Given = string | Omit<RetryRmqModuleOptions, 'name'>
type Connecting = (options: RetryRmqModuleOptions) => Promise<Client>

/**
 * Connects when the application starts, consumes with every method that has `@RetryConsume`, drains when it stops (with
 * `enableShutdownHooks()` also on SIGTERM), and provides the `Client`, a {@link RetryRmqPublisher} and a {@link RetryRmqHealthIndicator}. It
 * is global: import it once.
 */
export class RetryRmqModule {
  /** A client of the broker at this URL, or with these options. */
  static forRoot(options: string | RetryRmqModuleOptions = {}): DynamicModule {
    return dynamic(typeof options === 'string' ? undefined : options.name, { useFactory: () => options })
  }

  /** A client with options that a function makes. */
  static forRootAsync(options: RetryRmqModuleAsyncOptions): DynamicModule {
    return dynamic(options.name, options)
  }

  /** No client, for tests: {@link RetryRmqTesting} takes its place, and is provided under its own class, too. */
  static forTest(options: Pick<RetryRmqModuleOptions, 'name' | 'defaults'> = {}): DynamicModule {
    const rmq = new RetryRmqTesting()
    const module = dynamic(options.name, { useFactory: () => options }, async () => rmq as unknown as Client)
    module.providers?.push({ provide: RetryRmqTesting, useValue: rmq })
    module.exports?.push(RetryRmqTesting)
    return module
  }
}

Module({})(RetryRmqModule)

const connected: Connecting = ({ url, name: _, defaults: __, ...options }) => connect(url, options)

function dynamic(name: string | undefined, { imports = [], useFactory, inject = [] }: RetryRmqModuleAsyncOptions, client = connected): DynamicModule {
  const suffix = name === undefined ? '' : `:${name}`
  const [options, consumers] = [`RetryRmqOptions${suffix}`, `RetryRmqConsumers${suffix}`]
  const [clientToken, publisher, health] = [getClientToken(name), getPublisherToken(name), getHealthToken(name)]
  return {
    module: RetryRmqModule,
    global: true,
    imports: [DiscoveryModule, ...imports],
    providers: [
      {
        provide: options,
        useFactory: async (...args: unknown[]): Promise<RetryRmqModuleOptions> => {
          const given = await useFactory(...args)
          return typeof given === 'string' ? { url: given } : given
        },
        inject,
      },
      { provide: clientToken, useFactory: client, inject: [options] },
      { provide: publisher, useFactory: (client: Client) => new RetryRmqPublisher(client), inject: [clientToken] },
      { provide: health, useFactory: (client: Client) => new RetryRmqHealthIndicator(client), inject: [clientToken] },
      {
        provide: consumers,
        useFactory: (client: Client, { defaults }: RetryRmqModuleOptions, discovery: DiscoveryService, contexts: ExternalContextCreator) =>
          new RetryRmqConsumers(client, { name, defaults }, discovery, contexts),
        inject: [clientToken, options, DiscoveryService, ExternalContextCreator],
      },
    ],
    exports: [clientToken, publisher, health],
  }
}
