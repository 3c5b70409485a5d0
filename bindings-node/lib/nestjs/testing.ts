/** Consumers of an application without a broker. */

import type { Client } from '../client.js'
import type { Consumer } from '../consumer.js'
import { InvalidOptionError } from '../errors.js'
import type { ConsumerOptions, Handler } from '../options.js'
import { type Body, type PublishOptions, outgoing } from '../publish.js'
import { type Input, type Simulated, simulate } from '../simulation.js'

/** A message that the code under test has published. */
export interface PublishedMessage extends PublishOptions {
  routingKey: string
  body: Body
}

/**
 * Takes the place of a `Client` in a test. It runs the consumers of the application with their real policies on a virtual clock, with pipes, guards,
 * interceptors and filters, and keeps what they publish.
 *
 *     const rmq = new RetryRmqTesting()
 *     const module = await Test.createTestingModule({ imports: [AppModule] }).overrideProvider(Client).useValue(rmq).compile()
 *     await module.init()
 *     const { parked } = await rmq.simulate('orders', ['{"id": 7}'])
 */
export class RetryRmqTesting implements Pick<Client, 'publish' | 'healthy' | 'trouble' | 'close'> {
  /** What was published, replies too, in order. */
  readonly published: PublishedMessage[] = []
  readonly #consumers = new Map<string, { options: ConsumerOptions; handler: Handler }>()

  /** Runs the consumer of `queue` on these messages until each has ended, see `simulate` of `retryrmq/testing`. */
  async simulate(queue: string, inputs: Iterable<Input>): Promise<Simulated> {
    const consumer = this.#consumers.get(queue)
    if (consumer === undefined) {
      const known = [...this.#consumers.keys()].join(', ') || 'none; call `init()` of the module first'
      throw new InvalidOptionError(`no method consumes ${queue}; the consumed queues are ${known}`)
    }
    return simulate(consumer.options, consumer.handler, inputs)
  }

  /** Keeps the consumer. @internal */
  async consume(options: ConsumerOptions, handler: Handler): Promise<Pick<Consumer, 'close'>> {
    this.#consumers.set(options.queue, { options, handler })
    return { close: async () => void this.#consumers.delete(options.queue) }
  }

  /** Keeps the message. Rejects for options that cannot work. */
  async publish(routingKey: string, body: Body, options: PublishOptions = {}): Promise<void> {
    outgoing(routingKey, body, options)
    this.published.push({ routingKey, body, ...options })
  }

  healthy(): boolean {
    return true
  }

  trouble(): null {
    return null
  }

  async close(): Promise<void> {}
}
