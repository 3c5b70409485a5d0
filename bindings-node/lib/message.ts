/** A message as a handler gets it. A value is converted when it is first looked at. */

import { inspect, type InspectOptions } from 'node:util'

import type { Batch } from './native.js'
import { type Headers, date, readTable } from './values.js'
import { Reader } from './wire.js'

/** The AMQP properties of a message that are set, without the headers. */
export interface Properties {
  contentType?: string
  contentEncoding?: string
  correlationId?: string
  replyTo?: string
  /** Milliseconds, as text. */
  expiration?: string
  messageId?: string
  type?: string
  userId?: string
  appId?: string
  clusterId?: string
  /** 2 is persistent. */
  deliveryMode?: number
  priority?: number
  /** In whole seconds. A number of seconds since 1970 if it is beyond JavaScript's calendar. */
  timestamp?: Date | number
}

/** One failed attempt of a message. */
export interface HistoryEntry {
  /** The number of the attempt; 1 is the first delivery. */
  readonly attempt: number
  /** When it failed, in whole seconds. */
  readonly at: Date
  /** The error, one line. */
  readonly error: string
  /** The host name of the consumer. */
  readonly host: string
  /** The version of the consuming application, as given to `connect`; empty if it was not. */
  readonly appVersion: string
}

const TEXTS = [
  'contentType',
  'contentEncoding',
  'correlationId',
  'replyTo',
  'expiration',
  'messageId',
  'type',
  'userId',
  'appId',
  'clusterId',
] as const

const REDELIVERED = 1
const MAY_PARK = 2
const OWN_BUFFER = 4
/** Where the body begins in a record; `src/message.rs` lists what is before it. */
const BODY = 36

/** The header with the index of a simulated message. @internal */
export const MARK = 'retryrmq-simulated'
/** The token that settles a message. @internal */
export let tokenOf: (message: Message) => number
/** Whether a stack would be kept if this attempt failed. @internal */
export let mayPark: (message: Message) => boolean
/** Removes and returns the mark of a simulated message. @internal */
export let unmark: (message: Message) => number
let made: (queue: string, records: Buffer, at: number, own: Buffer | undefined) => Message

/**
 * A message. If its handler returns, it is acknowledged; if the handler throws, it is retried.
 *
 * `Body` is the type that {@link Message.json} returns. It is not checked.
 */
export class Message<Body = unknown> {
  /** The work queue it came from. */
  readonly queue: string
  readonly #records: Buffer
  readonly #at: number
  readonly #token: number
  readonly #flags: number
  #body: Buffer | undefined
  /** The length of a body that is among the records. */
  readonly #length: number
  /** The position after the body. There follow exchange, routing key, message id, last error, repairs, properties, headers, history. */
  readonly #rest: number
  #properties = 0
  #headers: Headers | undefined
  #marked = false

  private constructor(queue: string, records: Buffer, at: number, own: Buffer | undefined) {
    this.queue = queue
    this.#records = records
    this.#at = at
    this.#token = records.readDoubleLE(at + 4)
    this.#flags = records.readUInt32LE(at + 12)
    this.#body = own
    this.#length = own === undefined ? records.readUInt32LE(at + 32) : 0
    this.#rest = at + BODY + this.#length
  }

  /** The body, as it was published. It has its own memory, which may be transferred to a worker thread. */
  get body(): Buffer {
    if (this.#body === undefined) {
      // A copy: all messages of a batch share one memory, and transferring that would take it away from the others.
      this.#body = Buffer.allocUnsafeSlow(this.#length)
      this.#records.copy(this.#body, 0, this.#at + BODY, this.#rest)
    }
    return this.#body
  }

  /** The body as text. */
  text(): string {
    return this.#length > 0 ? this.#records.toString('utf8', this.#at + BODY, this.#rest) : this.body.toString('utf8')
  }

  /** The body, parsed as JSON. Throws `SyntaxError` if it is not JSON. The type `T` is not checked. */
  json<T = Body>(): T {
    return JSON.parse(this.text()) as T
  }

  /** The headers. They include the headers of the broker and the `x-retry-*` headers of this library. */
  get headers(): Headers {
    if (this.#headers === undefined) {
      const from = new Reader(this.#records, this.#afterTexts())
      readProperties(from)
      this.#headers = readTable(from)
      if (this.#marked) delete this.#headers[MARK]
    }
    return this.#headers
  }

  /** The AMQP properties that are set, without the headers. */
  get properties(): Properties {
    return readProperties(new Reader(this.#records, this.#afterTexts()))
  }

  /** The exchange the message was first published to; empty for the default exchange. */
  get exchange(): string {
    return this.#text(0) ?? ''
  }

  /** The routing key the message was first published with. */
  get routingKey(): string {
    return this.#text(1) ?? ''
  }

  /** The id that the publisher gave it. */
  get messageId(): string | undefined {
    return this.#text(2)
  }

  /** The number of this attempt: 1 on first delivery. */
  get attempt(): number {
    return this.#records.readUInt32LE(this.#at + 16)
  }

  /** How many attempts failed before this one: `attempt - 1`. */
  get retries(): number {
    return this.attempt - 1
  }

  /** When the first attempt failed, in whole seconds; `undefined` if none has failed. */
  get firstFailedAt(): Date | undefined {
    const seconds = this.#records.readDoubleLE(this.#at + 24)
    return Number.isNaN(seconds) ? undefined : new Date(seconds * 1000)
  }

  /** The error of the last failed attempt; `undefined` if none has failed. */
  get lastError(): string | undefined {
    return this.#text(3)
  }

  /** How often the message was replayed from the parking queue. */
  get replays(): number {
    return this.#records.readUInt32LE(this.#at + 20)
  }

  /** Whether the broker has delivered this message before (AMQP `redelivered`). */
  get redelivered(): boolean {
    return (this.#flags & REDELIVERED) !== 0
  }

  /**
   * What had to be repaired before the message could be read, such as names that are not UTF-8 or tables nested too deeply;
   * `undefined` if nothing. If the handler fails on such a message, it is parked as `undecodable` at once.
   */
  get mended(): string | undefined {
    return this.#text(4)
  }

  /** The last failures, at most ten, oldest first. */
  get history(): HistoryEntry[] {
    const from = new Reader(this.#records, this.#afterTexts())
    readProperties(from)
    readTable(from)
    const history: HistoryEntry[] = []
    for (let left = from.u32(); left > 0; left--) {
      history.push({
        attempt: from.u32(),
        at: new Date(from.f64() * 1000),
        error: from.text(),
        host: from.text(),
        appVersion: from.text(),
      })
    }
    return history
  }

  [inspect.custom](_depth: number, options: InspectOptions): string {
    const bytes = this.#body?.length ?? this.#length
    const shown = { queue: this.queue, messageId: this.messageId, attempt: this.attempt, bytes }
    return `Message ${inspect(shown, options)}`
  }

  #text(index: number): string | undefined {
    const from = new Reader(this.#records, this.#rest)
    for (let left = index; left > 0; left--) from.skip()
    return from.maybe()
  }

  #afterTexts(): number {
    if (this.#properties === 0) {
      const from = new Reader(this.#records, this.#rest)
      for (let left = 5; left > 0; left--) from.skip()
      this.#properties = from.at
    }
    return this.#properties
  }

  static {
    made = (queue, records, at, own) => new Message(queue, records, at, own)
    tokenOf = (message) => message.#token
    mayPark = (message) => (message.#flags & MAY_PARK) !== 0
    unmark = (message) => {
      const mark = message.headers[MARK]
      delete message.headers[MARK]
      message.#marked = true
      return mark as number
    }
  }
}

/** The messages of a batch. @internal */
export function messages(queue: string, batch: Batch): Message[] {
  const { records, bodies } = batch
  const read: Message[] = []
  let own = 0
  for (let at = 0; at < records.length; at += records.readUInt32LE(at)) {
    const large = (records.readUInt32LE(at + 12) & OWN_BUFFER) !== 0
    read.push(made(queue, records, at, large ? bodies[own++] : undefined))
  }
  return read
}

/** The tokens that settle the messages of a batch. @internal */
export function tokens({ records }: Batch): number[] {
  const read: number[] = []
  for (let at = 0; at < records.length; at += records.readUInt32LE(at)) read.push(records.readDoubleLE(at + 4))
  return read
}

function readProperties(from: Reader): Properties {
  const present = from.u32()
  const properties: Properties = {}
  TEXTS.forEach((name, bit) => {
    if (present & (1 << bit)) properties[name] = from.text()
  })
  if (present & (1 << 10)) properties.deliveryMode = from.u8()
  if (present & (1 << 11)) properties.priority = from.u8()
  if (present & (1 << 12)) properties.timestamp = date(from.f64())
  return properties
}
