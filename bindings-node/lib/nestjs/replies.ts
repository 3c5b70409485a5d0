/** Replies to requests, as `ClientRMQ` understands them: one for each request, when its result is final. */

import type { LoggerService } from '@nestjs/common'

import type { Client } from '../client.js'
import { AccessRefusedError, BrokerTimeoutError, NotConfirmedError, TooLargeError, UnroutableError } from '../errors.js'
import { FinalFailureCheck } from '../final_failure.js'
import type { ConsumerOptions } from '../options.js'
import { timeoutEnd } from '../outcome.js'
import { now, setTimeout } from '../timers.js'
import type { RetryRmqContext } from './context.js'
import { errorReply, successReply } from './rpc_protocol.js'

/** How long to wait before a reply that the broker has rejected is sent again, in milliseconds. A full queue may have room by then. */
const PAUSES = [100, 400, 1600]

/** After these a reply is given up: the work is done, and doing it again would not help. */
const PERMANENT_ERRORS = [UnroutableError, AccessRefusedError, TooLargeError, NotConfirmedError, BrokerTimeoutError]

/** The replies of one consumer. @internal */
export class Replies {
  readonly #client: Client
  readonly #finalFailure: FinalFailureCheck
  readonly #log: LoggerService

  constructor(client: Client, options: ConsumerOptions, log: LoggerService) {
    this.#client = client
    this.#finalFailure = new FinalFailureCheck(options)
    this.#log = log
  }

  /**
   * Handles a request. If it succeeds, the reply is published before the message is acknowledged. If it fails, the reply is published only if no
   * retry follows. An attempt sends one reply at most.
   */
  async around(attempt: RetryRmqContext, replyTo: string, handle: () => Promise<unknown>): Promise<unknown> {
    const { message, signal } = attempt
    const began = now()
    let hasReplied = false
    const send = async (body: () => string): Promise<void> => {
      if (hasReplied) return
      hasReplied = true
      await this.#send(attempt, replyTo, body(), began + this.#finalFailure.limit)
    }
    const refuse = (error: unknown): Promise<void> =>
      send(() => errorReply(error, attempt.refused)).catch((why: unknown) => this.#warn(replyTo, why))
    const expire = async (): Promise<void> => {
      if (this.#finalFailure.isFinalOnTimeout(message)) await refuse(timeoutEnd(this.#finalFailure.limit).reason)
    }
    const aborted = (): void => {
      if ((signal.reason as Error).name === 'TimeoutError') void expire()
    }
    // A handler that blocks the event loop keeps the timer waiting, too; its attempt has failed all the same.
    const isLate = (): boolean => now() - began >= this.#finalFailure.limit
    signal.addEventListener('abort', aborted, { once: true })
    try {
      const value = await handle()
      if (!signal.aborted) await (isLate() ? expire() : send(() => this.#response(replyTo, value)))
      return value
    } catch (error) {
      if (!signal.aborted) {
        if (isLate()) await expire()
        else if (this.#finalFailure.isFinal(message, error)) await refuse(error)
      }
      throw error
    } finally {
      signal.removeEventListener('abort', aborted)
    }
  }

  /** An error for the requester, if the result is no value of JSON: the work is done. */
  #response(replyTo: string, value: unknown): string {
    try {
      return successReply(value)
    } catch (error) {
      this.#log.warn(`a result for ${replyTo} is no value of JSON, so the reply is an error: ${String(error)}`)
      return errorReply(error, undefined)
    }
  }

  /** Gives up before `deadline`, because an attempt that takes too long is repeated. */
  async #send({ message }: RetryRmqContext, replyTo: string, body: string, deadline: number): Promise<void> {
    const { correlationId } = message.properties
    for (const pause of [...PAUSES, undefined]) {
      try {
        return await this.#client.publish(replyTo, body, { correlationId, contentType: 'application/json', persistent: false })
      } catch (error) {
        if (error instanceof NotConfirmedError && pause !== undefined && now() + pause < deadline) {
          await new Promise((resolve) => setTimeout(resolve, pause))
          continue
        }
        if (!PERMANENT_ERRORS.some((Class) => error instanceof Class)) throw error
        return this.#warn(replyTo, error)
      }
    }
  }

  #warn(replyTo: string, error: unknown): void {
    this.#log.warn(`a reply to ${replyTo} was not published: ${String(error)}`)
  }
}
