/** What `@Ctx()` gives. */

import { BaseRpcContext } from '@nestjs/microservices'

import type { Duration } from '../duration.js'
import type { Message } from '../message.js'
import type { Context } from '../options.js'
import { defer, park, retryAfter, undecodable } from '../outcome.js'
import type { Headers } from '../values.js'

/** The context of an attempt, for `@Ctx()`, and for guards, interceptors and filters as `host.switchToRpc().getContext()`. */
export class RetryRmqContext extends BaseRpcContext<[Message, string]> {
  /** Whether the publisher waits for a reply, as after `ClientProxy.send`. */
  readonly isRequest: boolean
  /** What a filter wants the requester to see of this exception. @internal */
  refused: { exception: unknown; shown: unknown } | undefined
  readonly #context: Context

  /** @internal */
  constructor(message: Message, pattern: string, isRequest: boolean, context: Context) {
    super([message, pattern])
    this.isRequest = isRequest
    this.#context = context
  }

  /** The message. */
  get message(): Message {
    return this.args[0]
  }

  /** The pattern of its `{ pattern, data }`, as text; the routing key if it is plain. */
  get pattern(): string {
    return this.args[1]
  }

  /** The number of this attempt: 1 on first delivery. */
  get attempt(): number {
    return this.message.attempt
  }

  /** The headers of the message. */
  get headers(): Headers {
    return this.message.headers
  }

  /** Aborts when the attempt has taken longer than `handlerTimeout`, or its consumer has ended without waiting for it. */
  get signal(): AbortSignal {
    return this.#context.signal
  }

  /** Throws: the message is parked now as `requested`. */
  park(reason: string, options?: { cause?: unknown }): never {
    throw park(reason, options)
  }

  /** Throws: the attempt failed; the next one is after `delay`. */
  retryAfter(delay: Duration, why?: unknown): never {
    throw retryAfter(delay, why)
  }

  /** Throws: the message is delivered again after `delay`, and uses up no attempt. */
  defer(delay: Duration): never {
    throw defer(delay)
  }

  /** Throws: the message is parked now as `undecodable`. */
  undecodable(why: unknown): never {
    throw undecodable(why)
  }
}
