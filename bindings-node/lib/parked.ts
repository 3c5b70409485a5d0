/** Parked messages: read, replayed, dropped. Reading loses no message. */

import { dispatcher } from './notifications.js'
import { InvalidTypeError, callNative, clientClosed, kind } from './errors.js'
import type { ParkReason } from './events.js'
import { type Message, messages } from './message.js'
import type { Client, Record, Walk } from './native.js'
import { string } from './options.js'

/** What is known of a parked message, as the native half writes it. */
interface Row {
  reason?: ParkReason
  /** In seconds since 1970. */
  parked_at?: number
  error: string
  error_type: string
  stack?: string
  fingerprint: string
  attempts: number
  by_broker: boolean
  home: string
  mark: string
}

let recordOf: (queue: string, walk: Walk, record: Record) => ParkedMessage
/** The messages parked for a queue. @internal */
export let parkedOf: (client: Client, queue: string, closed: () => boolean) => ParkedMessages

/** A parked message, and the record of why it was parked. */
export class ParkedMessage {
  /** The message itself: body, headers, and where it was first published. */
  readonly message: Message
  /** Why it was parked; `undefined` if neither a consumer nor the broker left a reason. */
  readonly reason: ParkReason | undefined
  /** When it was parked, in whole seconds. */
  readonly parkedAt: Date | undefined
  /** The last failure, one line. */
  readonly error: string
  /** The error's type or class; empty if unknown. */
  readonly errorType: string
  /** The stack of the last failure, if there is one. */
  readonly stack: string | undefined
  /** Sixteen hexadecimal digits that equal failures share. */
  readonly fingerprint: string
  /** How many attempts were made; 0 if the broker parked it and nothing counted. */
  readonly attempts: number
  /** Whether the broker dead-lettered it. Otherwise a consumer of this library parked it. */
  readonly byBroker: boolean
  /**
   * The queue to which it is replayed: the work queue of this parking queue, or another queue from which the broker dead-lettered it.
   */
  readonly home: string
  /**
   * Sixteen hexadecimal digits that identify this one message. They are computed from its id, its body and the record of its parking,
   * so only messages that are equal in all of these share it.
   */
  readonly mark: string
  readonly #walk: Walk
  readonly #record: Record

  private constructor(queue: string, walk: Walk, record: Record) {
    const row = JSON.parse(record.row()) as Row
    const [message] = messages(queue, record.message())
    this.message = message as Message
    this.reason = row.reason
    this.parkedAt = row.parked_at === undefined ? undefined : new Date(row.parked_at * 1000)
    this.error = row.error
    this.errorType = row.error_type
    this.stack = row.stack
    this.fingerprint = row.fingerprint
    this.attempts = row.attempts
    this.byBroker = row.by_broker
    this.home = row.home
    this.mark = row.mark
    this.#walk = walk
    this.#record = record
  }

  /**
   * Replays the message: publishes a copy to the tail of its {@link home} queue, and acknowledges the parked one after the confirm. The
   * copy's retries count from the start. The first replay to a queue takes two seconds.
   *
   * Rejects with {@link UnroutableError} if the queue does not exist, and with the errors of publishing: the message stays parked.
   * Rejects with {@link InvalidOptionError} if it was already replayed or dropped, or could not be read as it is (`message.mended`), and
   * with {@link ClosedError} after the loop has ended. After {@link ConnectionLostError} it is still parked, and may also be in the work
   * queue.
   */
  replay(): Promise<void> {
    return dispatcher().run<void>((ticket) => callNative(() => this.#walk.replay(dispatcher().native, ticket, this.#record)))
  }

  /** Like {@link replay}, to a queue of your choice. Rejects with {@link InvalidOptionError} also for a waiting or parking queue. */
  async replayTo(queue: string): Promise<void> {
    const to = string('queue', queue)
    return dispatcher().run<void>((ticket) => callNative(() => this.#walk.replayTo(dispatcher().native, ticket, this.#record, to)))
  }

  /**
   * Drops the message for good (AMQP `basic.ack`).
   *
   * Rejects with {@link InvalidOptionError} if it was already replayed or dropped, and with {@link ClosedError} after the loop has ended.
   * After {@link ConnectionLostError} it may still be parked.
   */
  drop(): Promise<void> {
    return dispatcher().run<void>((ticket) => callNative(() => this.#walk.drop(dispatcher().native, ticket, this.#record)))
  }

  static {
    recordOf = (queue, walk, record) => new ParkedMessage(queue, walk, record)
  }
}

/** How a loop is left. */
interface Leaving {
  wanted: boolean
  now: () => void
}

/**
 * The messages that are parked for a queue when the loop begins:
 *
 *     for await (const it of rmq.parked('orders')) {
 *       if (it.errorType === 'Timeout') await it.replay()
 *     }
 *
 * The loop holds the messages it has shown. At its end, those that were neither replayed nor dropped are back in their places. The
 * loop throws {@link QueueNotFoundError} if nothing was ever parked, and {@link AccessRefusedError} without permission to read the queue
 * or to publish.
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

  /** How many messages were ready when the last loop began and were not shown yet. */
  get remaining(): number {
    return this.#walk?.remaining ?? 0
  }

  /**
   * How many other consumers the parking queue had when the last loop began. Other loops are among them. This loop does not see the
   * messages they hold, and the broker does not tell how many those are.
   */
  get others(): number {
    return this.#walk?.others ?? 0
  }

  /** How many messages were ready when the last loop began, and were taken by others before this loop came to them. */
  get missed(): number {
    return this.#walk?.missed ?? 0
  }

  /**
   * What is wrong with the parking queue, as far as a client can see when a loop begins; `undefined` if nothing is. A queue that
   * somebody else declared may drop parked messages. Policies cannot be seen.
   */
  get warning(): string | undefined {
    return this.#walk?.warning ?? undefined
  }

  /** A loop. Its `return()` also ends a `next()` that waits. */
  [Symbol.asyncIterator](): AsyncGenerator<ParkedMessage, void, undefined> {
    const leaving: Leaving = { wanted: false, now: () => {} }
    const loop = this.#loop(leaving)
    const end = loop.return.bind(loop)
    // By itself a generator ends only when it has the message for which it waits, and that may take long.
    loop.return = (value) => {
      leaving.wanted = true
      leaving.now()
      return end(value)
    }
    return loop
  }

  async *#loop(leaving: Leaving): AsyncGenerator<ParkedMessage, void, undefined> {
    if (this.#closed()) throw clientClosed()
    const walk = await dispatcher().run<Walk>((ticket) => this.#client.parked(dispatcher().native, ticket, this.queue))
    this.#walk = walk
    let closing: Promise<undefined> | undefined
    const close = (): Promise<undefined> =>
      (closing ??= dispatcher().run<undefined>((ticket) => walk.close(dispatcher().native, ticket)))
    // Its error is thrown at the end of the loop.
    leaving.now = () => void close().catch(() => {})
    try {
      while (!leaving.wanted) {
        const record = await dispatcher().run<Record | undefined>((ticket) => walk.next(dispatcher().native, ticket))
        if (record === undefined) return
        yield recordOf(this.queue, walk, record)
      }
    } finally {
      await close()
    }
  }

  static {
    parkedOf = (client, queue, closed) => new ParkedMessages(client, queue, closed)
  }
}
