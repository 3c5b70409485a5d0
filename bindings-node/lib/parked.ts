/** Parked messages: read, replayed, dropped. Reading spends nothing and loses nothing. */

import { bridge } from './bridge.js'
import { InvalidTypeError, asked, clientClosed, kind } from './errors.js'
import type { ParkReason } from './events.js'
import { type Message, messages } from './message.js'
import type { Client, Record, Walk } from './native.js'
import { string } from './options.js'

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
  /** Attempts that were made; 0 when the broker parked it and they were not counted. */
  readonly attempts: number
  /** Whether the broker dead-lettered it, rather than a consumer of this library parking it. */
  readonly byBroker: boolean
  /**
   * The queue that it belongs to and is replayed to: the one whose parking queue this is, or another one out of which the
   * broker dead-lettered it.
   */
  readonly home: string
  /**
   * Sixteen hexadecimal digits that name this one message, wherever it stands: of its id, its body and the record of its
   * parking. Only messages that are equal in all of these share it.
   */
  readonly mark: string
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
    this.home = entry.home
    this.mark = entry.mark
    this.#walk = walk
    this.#record = record
  }

  /**
   * Sends it back to the tail of its {@link home} queue, its retries counted from the start. The parked one goes after the copy
   * is confirmed; rejects with {@link UnroutableError} when the queue is gone.
   */
  replay(): Promise<void> {
    return bridge().ask<void>((ticket) => asked(() => this.#walk.replay(bridge().native, ticket, this.#record)))
  }

  /** As {@link replay}, to a queue of your choice. */
  replayTo(queue: string): Promise<void> {
    const to = string('queue', queue)
    return bridge().ask<void>((ticket) => asked(() => this.#walk.replayTo(bridge().native, ticket, this.#record, to)))
  }

  /** Drops the message for good. */
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
  #walk: Walk | undefined

  private constructor(client: Client, queue: string, closed: () => boolean) {
    if (typeof queue !== 'string') throw new InvalidTypeError(`\`queue\` must be a string, not ${kind(queue)}`)
    this.queue = queue
    this.#client = client
    this.#closed = closed
  }

  /** How many messages were there when the last loop began and have not been seen by it yet. */
  get remaining(): number {
    return this.#walk?.remaining ?? 0
  }

  /**
   * How many others were taking messages out of the parking queue when the last loop began, other loops among them. What they
   * hold this one does not see; how many messages that are a broker does not tell.
   */
  get others(): number {
    return this.#walk?.others ?? 0
  }

  /** How many messages were there when the last loop began, and were taken by others before they came. */
  get missed(): number {
    return this.#walk?.missed ?? 0
  }

  /**
   * What is wrong with the parking queue, as far as a client can see when a loop begins: a queue made by somebody else may drop
   * what is parked. Policies cannot be seen.
   */
  get warning(): string | undefined {
    return this.#walk?.warning ?? undefined
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ParkedMessage, void, undefined> {
    if (this.#closed()) throw clientClosed()
    const walk = await bridge().ask<Walk>((ticket) => this.#client.parked(bridge().native, ticket, this.queue))
    this.#walk = walk
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
