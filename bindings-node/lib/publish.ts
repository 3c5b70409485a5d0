/** Messages to publish. */

import { types } from 'node:util'

import { type Duration, milliseconds } from './duration.js'
import { InvalidOptionError, InvalidTypeError, TooLargeError, kind } from './errors.js'
import { flag, onlyKnown, string } from './options.js'
import { type HeaderInput, asBytes, isPlain, named, timestamp, writeTable } from './values.js'
import { Writer } from './byte_writer.js'

/** A body: bytes in any kind of memory, or a string, which is sent as UTF-8. */
export type Body = string | ArrayBufferView | ArrayBuffer

/** What `publish` takes besides the routing key and the body. */
export interface PublishOptions {
  /** The exchange. By default the default exchange, for which the routing key is the name of a queue. */
  exchange?: string | undefined
  /** The headers, by name. */
  headers?: { readonly [name: string]: HeaderInput } | undefined
  /** Delivers the message after this time, at most 365 days. Only through the default exchange, without `expiration`, `CC` and `BCC`. */
  delay?: Duration | undefined
  /**
   * How long the call takes at most: it waits that long for a connection, for the end of a memory or disk alarm, and for the confirm. Then it rejects
   * with {@link BrokerTimeoutError}, and a message that was not sent yet will not be. By default it waits 5 seconds for a connection, and 20 seconds in
   * an alarm and for the confirm. While the broker confirms nothing, the 20 seconds double each time, up to 300.
   */
  timeout?: Duration | undefined
  /** Ends the wait: the call rejects with the signal's `reason`. The message may still be published. */
  signal?: AbortSignal | undefined
  /** Whether it is an error if no queue takes the message (AMQP `mandatory`). On by default. */
  mandatory?: boolean | undefined
  /** Whether the message survives a restart of the broker (AMQP `delivery-mode` 2). On by default. */
  persistent?: boolean | undefined
  /** The message's id. A consumer recognises a redelivery of a handled message by it. At most 255 bytes; a longer id is an error. */
  messageId?: string | undefined
  /** A MIME type such as `application/json`. */
  contentType?: string | undefined
  /** An encoding such as `gzip`. */
  contentEncoding?: string | undefined
  /** For replies: the id that links a reply to its request. */
  correlationId?: string | undefined
  /** For replies: the queue that the reply goes to. */
  replyTo?: string | undefined
  /** After this time in a queue the broker drops or dead-letters the message. Rounded up to whole milliseconds, at most 3650 days. */
  expiration?: Duration | undefined
  /** 0 to 255. */
  priority?: number | undefined
  /** The time of publication. AMQP keeps whole seconds. */
  timestamp?: Date | undefined
  /** The application's name for the kind of message. */
  type?: string | undefined
  /** The application's name. */
  appId?: string | undefined
  /** Must be the name of the connection's user; the broker refuses any other. */
  userId?: string | undefined
}

/** In the order of `src/publish.rs`. */
const TEXTS = [
  'messageId',
  'contentType',
  'contentEncoding',
  'correlationId',
  'replyTo',
  'type',
  'appId',
  'userId',
] as const

const KNOWN: readonly string[] = [
  'exchange',
  'headers',
  'delay',
  'timeout',
  'signal',
  'mandatory',
  'persistent',
  'expiration',
  'priority',
  'timestamp',
  ...TEXTS,
] satisfies (keyof PublishOptions)[]

const MANDATORY = 1
const PERSISTENT = 2
const HEADERS = 4

/** Throws unless these are options of `publish`, with headers that can be copied. All other values are checked by {@link outgoing}. @internal */
export function publishable(options: PublishOptions): void {
  if (typeof options !== 'object' || options === null) {
    throw new InvalidTypeError(`the options of publish() must be an object, not ${kind(options)}`)
  }
  onlyKnown(options, KNOWN)
  const { headers } = options
  if (headers !== undefined && !isPlain(headers)) {
    throw new InvalidTypeError(`\`headers\` must be an object, not ${named(headers)}`)
  }
}

/** A message for the native half. Throws with the name of an option that cannot work. @internal */
export function outgoing(routingKey: string, body: Body, options: PublishOptions): Buffer {
  publishable(options)
  const { exchange = '', headers, delay, timeout, mandatory = true, persistent = true, expiration, priority } = options
  const out = new Writer()
  out.u8(
    (flag('mandatory', mandatory) ? MANDATORY : 0) |
      (flag('persistent', persistent) ? PERSISTENT : 0) |
      (headers === undefined ? 0 : HEADERS),
  )
  out.maybeF64(delay === undefined ? undefined : milliseconds(delay, 'delay'))
  out.maybeF64(timeout === undefined ? undefined : milliseconds(timeout, 'timeout'))
  out.text(short('exchange', exchange))
  out.text(short('routingKey', routingKey))
  if (typeof body === 'string') {
    out.text(body)
  } else {
    const bytes = asBytes(body, 'body')
    if (bytes === undefined) {
      throw new InvalidTypeError(
        `\`body\` must be bytes or a string, not ${kind(body)}; JSON.stringify() makes a string of most things`,
      )
    }
    out.bytes(bytes)
  }
  for (const name of TEXTS) {
    const text = options[name]
    out.maybe(text === undefined ? undefined : string(name, text))
  }
  // AMQP keeps whole milliseconds, of which none at all would be another thing than a part of one.
  out.maybeF64(expiration === undefined ? undefined : Math.ceil(milliseconds(expiration, 'expiration')))
  out.maybeF64(priority === undefined ? undefined : level(priority))
  out.maybeF64(options.timestamp === undefined ? undefined : moment(options.timestamp))
  if (headers !== undefined) writeTable(out, headers, 'headers')
  return out.done()
}

/** A name for AMQP: at most 255 bytes. */
function short(option: string, value: unknown): string {
  const text = string(option, value)
  if (Buffer.byteLength(text) > 255) throw new TooLargeError(`\`${option}\` is longer than 255 bytes`)
  return text
}

function level(priority: number): number {
  if (typeof priority !== 'number') throw new InvalidTypeError(`\`priority\` must be a number, not ${kind(priority)}`)
  if (!Number.isInteger(priority) || priority < 0 || priority > 255) {
    throw new InvalidOptionError(`\`priority\` must be a whole number between 0 and 255, not ${priority}`)
  }
  return priority
}

function moment(value: Date): number {
  if (!types.isDate(value)) throw new InvalidTypeError(`\`timestamp\` must be a Date, not ${kind(value)}`)
  return timestamp(value, 'timestamp')
}
