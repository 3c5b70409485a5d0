/** A message as a handler gets it. A value is converted when it is first looked at. */

import { inspect, type InspectOptions } from 'node:util'

import { type Batch, native } from './native.js'
import { type Headers, date, readTable } from './values.js'
import { u64 } from './byte_writer.js'

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

/** A failed attempt, as the native half writes it; `at` in seconds since 1970. */
interface Row {
  attempt: number
  at: number
  error: string
  host: string
  app_version: string
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
const HAS_ID = 4
const HAS_FAILED = 8
const HAS_ERROR = 16
const MENDED = 32
/** The body has its own buffer. */
const OUTSIDE = 64

// Where things are in a message; the picture is in bindings-common/src/message_codec.rs.
const FLAGS = 4
const TOKEN = 8
const FIRST_FAILED_AT = 16
const ATTEMPT = 24
const REPLAYS = 28
const SIZES = 32
const PARTS = 64

// The parts of a message, in their order.
const EXCHANGE = 0
const ROUTING_KEY = 1
const MESSAGE_ID = 2
const LAST_ERROR = 3
const WHAT_WAS_MENDED = 4
const PROPERTIES = 5
const HEADERS = 6
const BODY = 7

/** The header with the index of a simulated message. @internal */
export const MARK = 'retryrmq-simulated'
/** The token that settles a message. @internal */
export let tokenOf: (message: Message) => number
/** Whether a stack would be kept if this attempt failed. @internal */
export let mayPark: (message: Message) => boolean
/** The size of the body in bytes. @internal */
export let sizeOf: (message: Message) => number
/** Removes and returns the mark of a simulated message. @internal */
export let unmark: (message: Message) => number
let made: (queue: string, batch: Buffer, at: number, own: Buffer | undefined) => Message

/**
 * A message. If its handler returns, it is acknowledged; if the handler throws, it is retried.
 *
 * `Body` is the type that {@link Message.json} returns. It is not checked.
 */
export class Message<Body = unknown> {
  /** The work queue it came from. */
  readonly queue: string
  readonly #batch: Buffer
  readonly #at: number
  #body: Buffer | undefined
  #headers: Headers | undefined
  #marked = false

  private constructor(queue: string, batch: Buffer, at: number, own: Buffer | undefined) {
    this.queue = queue
    this.#batch = batch
    this.#at = at
    this.#body = own
  }

  /** The body, as it was published. It has its own memory, which may be transferred to a worker thread. */
  get body(): Buffer {
    if (this.#body === undefined) {
      const end = this.#end()
      const length = this.#size(BODY)
      // A copy: all messages of a batch share one memory, and transferring that would take it away from the others.
      this.#body = Buffer.allocUnsafeSlow(length)
      this.#batch.copy(this.#body, 0, end - length, end)
    }
    return this.#body
  }

  /** The body as text. */
  text(): string {
    const length = this.#size(BODY)
    if (length === 0) return this.body.toString('utf8')
    const end = this.#end()
    return this.#batch.toString('utf8', end - length, end)
  }

  /** The body, parsed as JSON. Throws `SyntaxError` if it is not JSON. Its type is not checked. */
  json(): Body
  // An overload, because the type of the variable for the result would choose a `T` that nobody gave.
  /** The body, parsed as JSON, as a `T`. Throws `SyntaxError` if it is not JSON. The type `T` is not checked. */
  json<T>(): T
  json(): unknown {
    return JSON.parse(this.text())
  }

  /** The headers. They include the headers of the broker and the `x-retry-*` headers of this library. */
  get headers(): Headers {
    if (this.#headers === undefined) {
      const at = this.#begin(HEADERS)
      this.#headers = readTable(this.#batch, at, at + this.#size(HEADERS))
      if (this.#marked) delete this.#headers[MARK]
    }
    return this.#headers
  }

  /** The AMQP properties that are set, without the headers. */
  get properties(): Properties {
    const at = this.#begin(PROPERTIES)
    return readProperties(this.#batch, at, at + this.#size(PROPERTIES))
  }

  /** The exchange the message was first published to; empty for the default exchange. */
  get exchange(): string {
    return this.#text(EXCHANGE)
  }

  /** The routing key the message was first published with. */
  get routingKey(): string {
    return this.#text(ROUTING_KEY)
  }

  /** The id that the publisher gave it. */
  get messageId(): string | undefined {
    return this.#has(HAS_ID) ? this.#text(MESSAGE_ID) : undefined
  }

  /** The number of this attempt: 1 on first delivery. */
  get attempt(): number {
    return this.#batch.readUInt32LE(this.#at + ATTEMPT)
  }

  /** How many attempts failed before this one: `attempt - 1`. */
  get retries(): number {
    return this.attempt - 1
  }

  /** When the first attempt failed, in whole seconds; `undefined` if none has failed. */
  get firstFailedAt(): Date | undefined {
    return this.#has(HAS_FAILED) ? new Date(u64(this.#batch, this.#at + FIRST_FAILED_AT) * 1000) : undefined
  }

  /** The error of the last failed attempt; `undefined` if none has failed. */
  get lastError(): string | undefined {
    return this.#has(HAS_ERROR) ? this.#text(LAST_ERROR) : undefined
  }

  /** How often the message was replayed from the parking queue. */
  get replays(): number {
    return this.#batch.readUInt32LE(this.#at + REPLAYS)
  }

  /** Whether the broker has delivered this message before (AMQP `redelivered`). */
  get redelivered(): boolean {
    return this.#has(REDELIVERED)
  }

  /**
   * Damage that was repaired so that the message could be read, such as names that are not UTF-8 or tables nested too deeply;
   * `undefined` if there was none. If the handler fails on such a message, it is parked as `undecodable` at once.
   */
  get mended(): string | undefined {
    return this.#has(MENDED) ? this.#text(WHAT_WAS_MENDED) : undefined
  }

  /** The last failures, at most ten, oldest first. */
  get history(): HistoryEntry[] {
    const at = this.#begin(HEADERS)
    const rows = JSON.parse(native.history(this.#batch.subarray(at, at + this.#size(HEADERS)))) as Row[]
    return rows.map(({ app_version: appVersion, at, ...entry }) => ({ ...entry, at: new Date(at * 1000), appVersion }))
  }

  [inspect.custom](_depth: number, options: InspectOptions): string {
    const shown = { queue: this.queue, messageId: this.messageId, attempt: this.attempt, bytes: sizeOf(this) }
    return `Message ${inspect(shown, options)}`
  }

  #has(flag: number): boolean {
    return (this.#batch.readUInt32LE(this.#at + FLAGS) & flag) !== 0
  }

  #size(part: number): number {
    return this.#batch.readUInt32LE(this.#at + SIZES + 4 * part)
  }

  /** Where a part begins: behind those before it. */
  #begin(part: number): number {
    let at = this.#at + PARTS
    for (let before = 0; before < part; before++) at += this.#size(before)
    return at
  }

  #end(): number {
    return this.#at + this.#batch.readUInt32LE(this.#at)
  }

  #text(part: number): string {
    const at = this.#begin(part)
    return this.#batch.toString('utf8', at, at + this.#size(part))
  }

  static {
    made = (queue, batch, at, own) => new Message(queue, batch, at, own)
    tokenOf = (message) => u64(message.#batch, message.#at + TOKEN)
    mayPark = (message) => message.#has(MAY_PARK)
    sizeOf = (message) => message.#body?.length ?? message.#size(BODY)
    unmark = (message) => {
      const mark = message.headers[MARK]
      delete message.headers[MARK]
      message.#marked = true
      return mark as number
    }
  }
}

/** The messages of a batch. @internal */
export function messages(queue: string, { messages, bodies }: Batch): Message[] {
  const read: Message[] = []
  let own = 0
  for (let at = 0; at < messages.length; at += messages.readUInt32LE(at)) {
    const outside = (messages.readUInt32LE(at + FLAGS) & OUTSIDE) !== 0
    read.push(made(queue, messages, at, outside ? bodies[own++] : undefined))
  }
  return read
}

/** The tokens that settle the messages of a batch. @internal */
export function tokens({ messages }: Batch): number[] {
  const read: number[] = []
  for (let at = 0; at < messages.length; at += messages.readUInt32LE(at)) read.push(u64(messages, at + TOKEN))
  return read
}

function readProperties(bytes: Buffer, at: number, end: number): Properties {
  const properties: Properties = {}
  while (at < end) {
    const number = bytes.readUInt8(at++)
    const name = TEXTS[number]
    if (name !== undefined) {
      const begin = at + 1
      at = begin + bytes.readUInt8(at)
      properties[name] = bytes.toString('utf8', begin, at)
    } else if (number === 10) properties.deliveryMode = bytes.readUInt8(at++)
    else if (number === 11) properties.priority = bytes.readUInt8(at++)
    else {
      properties.timestamp = date(u64(bytes, at))
      at += 8
    }
  }
  return properties
}
