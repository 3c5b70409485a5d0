/** Publishes values as JSON. */

import type { Client } from '../client.js'
import type { PublishOptions } from '../publish.js'
import type { Pattern } from './options.js'

/** The options of {@link RetryRmqPublisher.publish}: those of `Client.publish`, and a pattern. */
export interface PublisherOptions extends PublishOptions {
  /** Wraps the value as `{ pattern, data }`, as `ClientProxy.emit` does, for a consumer that looks for it. By default it is plain. */
  pattern?: Pattern | undefined
}

/** Publishes values as JSON, with a client of the module. */
export class RetryRmqPublisher {
  /** The client. */
  readonly client: Client

  /** @internal */
  constructor(client: Client) {
    this.client = client
  }

  /** Publishes `data` as JSON, and resolves when the broker has confirmed it; see {@link Client.publish}. */
  async publish(routingKey: string, data: unknown, { pattern, ...options }: PublisherOptions = {}): Promise<void> {
    const body = JSON.stringify(pattern === undefined ? data : { pattern, data }) as string | undefined
    if (body === undefined) throw new TypeError(`\`data\` must be a value of JSON, not ${typeof data}`)
    await this.client.publish(routingKey, body, { contentType: 'application/json', ...options })
  }
}
