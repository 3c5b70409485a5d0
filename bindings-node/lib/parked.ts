/** Parked messages: read, replayed, dropped. Reading spends nothing and loses nothing. */

import { bridge } from './bridge.js'
import { InvalidTypeError, asked, clientClosed, kind } from './errors.js'
import type { ParkReason } from './events.js'
import { type Message, messages } from './message.js'
import type { Client, Record, Walk } from './native.js'

let recordOf: (queue: string, walk: Walk, record: Record) => ParkedMessage
/** The messages parked for a queue. @internal */
export let parkedOf: (client: Client, queue: string, closed: () => boolean) => ParkedMessages

/** A parked message and the record of why. */
export class ParkedMessage {
  /** The message itself: body, headers, and where it was first published. */
  readonly message: Message
  /** Why; `undefined` when neither we nor the broker left a reason. */
  readonly reason: ParkReason | undefined
  /** When, to the second. */
  readonly parkedAt: Date | undefined
  /** The last failure, one line. */
  readonly error: string
  /** The error's type or class; empty when unknown. */
  readonly errorType: string
  /** The stack of the last failure. */
  readonly stack: string | undefined
  /** Sixteen hexadecimal digits that equal failures share. */
  readonly fingerprint: string
  /** Attempts that were made; 0 when the broker parked it and nobody counted. */
  readonly attempts: number
  /** Whether the broker dead-lettered it, rather than a consumer of ours parking it. */
  readonly byBroker: boolean
  readonly #walk: Walk
  readonly #record: Record

  private constructor(queue: string, walk: Walk, record: Record) {
    const entry = record.entry()
    const [message] = messages(queue, record.message())
    this.message = message as Message
    this.reason = entry.reason as ParkReason | undefined
    this.parkedAt = Number.isNaN(entry.parkedAt) ? undefined : new Date(entry.parkedAt * 1000)
    this.error = entry.error
    this.errorType = entry.errorType
    this.stack = entry.stack
    this.fingerprint = entry.fingerprint
    this.attempts = entry.attempts
    this.byBroker = entry.byBroker
    this.#walk = walk
    this.#record = record
  }

  /**
   * Sends it back to the tail of its work queue, its retries counted from the start. The parked one goes after the copy is
   * confirmed; rejects with {@link UnroutableError} when the queue is gone.
   */
  replay(): Promise<void> {
    return bridge().ask<void>((ticket) => asked(() => this.#walk.replay(bridge().native, ticket, this.#record)))
  }

  /** Drops it for good. */
  drop(): Promise<void> {
    return bridge().ask<void>((ticket) => asked(() => this.#walk.drop(bridge().native, ticket, this.#record)))
  }

  static {
    recordOf = (queue, walk, record) => new ParkedMessage(queue, walk, record)
  }
}

/**
 * The messages parked for a queue, as they are when the loop begins:
 *
 *     for await (const it of rmq.parked('orders')) {
 *       if (it.errorType === 'Timeout') await it.replay()
 *     }
 *
 * At the end of the loop, what was neither replayed nor dropped is back in its place.
 */
export class ParkedMessages implements AsyncIterable<ParkedMessage> {
  /** The work queue. */
  readonly queue: string
  readonly #client: Client
  readonly #closed: () => boolean

  private constructor(client: Client, queue: string, closed: () => boolean) {
    if (typeof queue !== 'string') throw new InvalidTypeError(`\`queue\` must be a string, not ${kind(queue)}`)
    this.queue = queue
    this.#client = client
    this.#closed = closed
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ParkedMessage, void, undefined> {
    if (this.#closed()) throw clientClosed()
    const walk = await bridge().ask<Walk>((ticket) => this.#client.parked(bridge().native, ticket, this.queue))
    try {
      for (;;) {
        const record = await bridge().ask<Record | undefined>((ticket) => walk.next(bridge().native, ticket))
        if (record === undefined) return
        yield recordOf(this.queue, walk, record)
      }
    } finally {
      await bridge().ask<undefined>((ticket) => walk.close(bridge().native, ticket))
    }
  }

  static {
    parkedOf = (client, queue, closed) => new ParkedMessages(client, queue, closed)
  }
}
