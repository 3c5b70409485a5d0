/** Health of a client, for `@nestjs/terminus` and others. */

import type { Client } from '../client.js'

/** What an indicator of `@nestjs/terminus` returns. */
export type RetryRmqHealth<Key extends string> = { [key in Key]: { status: 'up' | 'down'; message?: string } }

/**
 * An indicator for `@nestjs/terminus` 11 and later:
 *
 *     @HealthCheck() check() { return this.health.check([() => this.rabbitmq.isHealthy('rabbitmq')]) }
 */
export class RetryRmqHealthIndicator {
  readonly #client: Client

  /** @internal */
  constructor(client: Client) {
    this.#client = client
  }

  /** `up` if both connections of the client are open. Nothing is sent to the broker. Why it is `down` is in the log, and in `Client.trouble()`. */
  isHealthy<const Key extends string>(key: Key): RetryRmqHealth<Key> {
    // The reason names the broker, which is not for those who read the answer.
    const health = this.#client.healthy() ? { status: 'up' } : { status: 'down', message: 'not connected to the broker' }
    return { [key]: health } as RetryRmqHealth<Key>
  }
}
