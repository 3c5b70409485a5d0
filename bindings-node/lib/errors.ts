/** Errors: one base, a class per kind, and a stable `code` that is the same in every language. */

const BRAND = Symbol.for('retryrmq.error')

/** The codes of errors, the same in every language. */
export type ErrorCode =
  | 'invalid_url'
  | 'invalid_option'
  | 'invalid_policy'
  | 'unreachable'
  | 'authentication_failed'
  | 'tls_failed'
  | 'vhost_not_found'
  | 'queue_not_found'
  | 'mismatch'
  | 'access_refused'
  | 'strategy_refused'
  | 'unroutable'
  | 'not_confirmed'
  | 'too_large'
  | 'timeout'
  | 'connection_lost'
  | 'closed'
  | 'broker_error'
  | 'error'

interface ErrorOptions {
  cause?: unknown
}

/**
 * The base of every error of this package. None of them means that a delivered message was lost: what was not acknowledged stays in
 * its queue.
 *
 * Errors about options are also `TypeError`s or `RangeError`s. `instanceof RetryRmqError` is true for all.
 */
export class RetryRmqError extends Error {
  /** The code of the error, the same in every language. */
  readonly code: ErrorCode = 'error'
  /** @internal */
  declare readonly [BRAND]: true

  static override [Symbol.hasInstance](value: unknown): boolean {
    if (this !== RetryRmqError) return Function.prototype[Symbol.hasInstance].call(this, value)
    return typeof value === 'object' && value !== null && BRAND in value
  }

  override get name(): string {
    return this.constructor.name
  }
}

/** An option has a value that cannot work. Nothing was subscribed or published. */
export class InvalidOptionError extends RangeError {
  readonly code = 'invalid_option'
  /** @internal */
  declare readonly [BRAND]: true

  override get name(): string {
    return this.constructor.name
  }
}

/** An option has a value of a wrong type. Nothing was subscribed or published. */
export class InvalidTypeError extends TypeError {
  readonly code = 'invalid_option'
  /** @internal */
  declare readonly [BRAND]: true

  override get name(): string {
    return this.constructor.name
  }
}

/** A retry policy or a rule cannot be parsed, or cannot work. */
export class InvalidPolicyError extends RangeError {
  readonly code = 'invalid_policy'
  /** @internal */
  declare readonly [BRAND]: true

  override get name(): string {
    return this.constructor.name
  }
}

/** The broker's address cannot be used: unknown scheme, missing host, port out of range, or hosts of different clusters. */
export class InvalidUrlError extends RangeError {
  readonly code = 'invalid_url'
  /** @internal */
  declare readonly [BRAND]: true

  override get name(): string {
    return this.constructor.name
  }
}

/**
 * No usable connection: nothing answers, it is not AMQP 0-9-1, the broker is still starting, or its limit of connections or channels is
 * reached.
 */
export class UnreachableError extends RetryRmqError {
  override readonly code = 'unreachable'
}

/** The broker refused the login (AMQP 403 while connecting), or the password file or the `credentials` function failed. */
export class AuthenticationFailedError extends RetryRmqError {
  override readonly code = 'authentication_failed'
}

/** The TLS handshake failed, or a certificate file contains no certificate. */
export class TlsFailedError extends RetryRmqError {
  override readonly code = 'tls_failed'
}

/** The virtual host does not exist (AMQP 530 while connecting). */
export class VhostNotFoundError extends RetryRmqError {
  override readonly code = 'vhost_not_found'
}

/** A queue, or an exchange that the strategy needs, does not exist, and this call does not create it (AMQP 404). */
export class QueueNotFoundError extends RetryRmqError {
  override readonly code = 'queue_not_found'
}

/** A queue or exchange exists with other arguments (AMQP 406), or is a stream or an auto-delete queue and cannot be used. */
export class MismatchError extends RetryRmqError {
  override readonly code = 'mismatch'
}

/**
 * The user lacks a permission (AMQP 403; the error message names the pattern), or another connection uses the queue exclusively (AMQP 403
 * or 405).
 */
export class AccessRefusedError extends RetryRmqError {
  override readonly code = 'access_refused'
}

/** This broker or this queue cannot serve the chosen strategy safely. The error message names one that can. */
export class StrategyRefusedError extends RetryRmqError {
  override readonly code = 'strategy_refused'
}

/** No queue takes a message with this exchange and routing key (AMQP `basic.return`), or there is no such exchange (AMQP 404). It was not stored. */
export class UnroutableError extends RetryRmqError {
  override readonly code = 'unroutable'
}

/** The broker rejected a publish (AMQP `basic.nack`). Publish it again after a pause. */
export class NotConfirmedError extends RetryRmqError {
  override readonly code = 'not_confirmed'
}

/** The message does not fit: a name longer than 255 bytes, headers larger than one frame, or a body larger than the broker allows. */
export class TooLargeError extends RangeError {
  readonly code = 'too_large'
  /** @internal */
  declare readonly [BRAND]: true

  override get name(): string {
    return this.constructor.name
  }
}

/** The broker did not answer in time, or the nodes of the queue are down. */
export class BrokerTimeoutError extends RetryRmqError {
  override readonly code = 'timeout'
}

/** The connection was lost. The client reconnects in the background. */
export class ConnectionLostError extends RetryRmqError {
  override readonly code = 'connection_lost'
}

/** The client or the consumer was closed, or a bug in retryrmq ended the consumer. */
export class ClosedError extends RetryRmqError {
  override readonly code = 'closed'
}

/** Any other refusal by the broker. The error message quotes it. */
export class BrokerError extends RetryRmqError {
  override readonly code = 'broker_error'
}

type Made = new (message: string, options?: ErrorOptions) => Error

for (const Class of [
  RetryRmqError,
  InvalidOptionError,
  InvalidTypeError,
  InvalidPolicyError,
  InvalidUrlError,
  TooLargeError,
]) {
  // On the prototype: a property of the error itself would be shown with it.
  Object.defineProperty(Class.prototype, BRAND, { value: true })
}

const CLASSES: { readonly [Code in Exclude<ErrorCode, 'error'>]: Made } & { readonly [code: string]: Made } = {
  invalid_url: InvalidUrlError,
  invalid_option: InvalidOptionError,
  invalid_policy: InvalidPolicyError,
  unreachable: UnreachableError,
  authentication_failed: AuthenticationFailedError,
  tls_failed: TlsFailedError,
  vhost_not_found: VhostNotFoundError,
  queue_not_found: QueueNotFoundError,
  mismatch: MismatchError,
  access_refused: AccessRefusedError,
  strategy_refused: StrategyRefusedError,
  unroutable: UnroutableError,
  not_confirmed: NotConfirmedError,
  too_large: TooLargeError,
  timeout: BrokerTimeoutError,
  connection_lost: ConnectionLostError,
  closed: ClosedError,
  broker_error: BrokerError,
}

/** A name of the core in this language: `handler_timeout` becomes `handlerTimeout`. @internal */
export function camel(name: string): string {
  return name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase())
}

/** How much two names are alike, 0 to 1: the pairs of letters that are in both. */
function likeness(one: string, other: string): number {
  const pairs = (name: string) => {
    const letters = [...name.toLowerCase()]
    return new Set(letters.slice(1).map((letter, before) => `${letters[before]}${letter}`))
  }
  const [ours, theirs] = [pairs(one), pairs(other)]
  return (2 * [...ours].filter((pair) => theirs.has(pair)).length) / (ours.size + theirs.size)
}

/** The options that there are, after the one that was probably meant. @internal */
export function choices(unknown: string, known: readonly string[]): string {
  const all = `the options are ${known.join(', ')}`
  const scored = known.map((name) => ({ name, like: likeness(unknown, name) })).filter(({ like }) => like > 0.4)
  const [best] = scored.sort((one, other) => other.like - one.like)
  return best === undefined ? all : `did you mean \`${best.name}\`? T${all.slice(1)}`
}

/** Errors that may name options. */
const ABOUT_OPTIONS = ['invalid_option', 'queue_not_found', 'strategy_refused']

/** A text of the core with the option names of this language. A queue may have the name of an option, so those are left alone. */
function ours(message: string): string {
  const named = /(?<!\b(?:queue|queue of|consume) )`(?:batch_wait|handler_timeout|drain_timeout|reserved_name|work_queue|queue_type)`/g
  return message.replace(named, camel)
}

function known(code: string): Made | undefined {
  return Object.hasOwn(CLASSES, code) ? CLASSES[code] : undefined
}

/** The error of the core with this code. @internal */
export function refused(code: string, message: string, detail: string): Error {
  const Class = known(code) ?? RetryRmqError
  const text = ABOUT_OPTIONS.includes(code) ? ours(message) : message
  return detail === '' ? new Class(text) : new Class(text, { cause: new Error(detail) })
}

/** Gives the error the stack of the call that failed. Its own stack would begin where answers are read. @internal */
export function calledAt(error: Error, stack: unknown): Error {
  const frames = typeof stack === 'string' ? stack.indexOf('\n    at ') : -1
  if (frames >= 0) error.stack = `${error.name}: ${error.message}${(stack as string).slice(frames)}`
  return error
}

/** What calls of the native half throw. */
interface Thrown {
  code: string
  message: string
  cause?: { message: string }
}

/**
 * Whether it is an error of the native half. The native half makes errors of the main realm. Code in another realm, such as a test under
 * Jest, cannot recognise them by `instanceof Error`.
 */
function isNative(thrown: unknown): thrown is Thrown {
  if (typeof thrown !== 'object' || thrown === null) return false
  const { code, message } = thrown as Partial<Thrown>
  return typeof message === 'string' && typeof code === 'string' && known(code) !== undefined
}

/** Calls the native half, and turns its errors into errors of this package. @internal */
export function callNative<T>(call: () => T, about?: string): T {
  try {
    return call()
  } catch (thrown) {
    if (!isNative(thrown)) throw thrown
    const message = about === undefined ? thrown.message : `\`${about}\`: ${thrown.message}`
    throw refused(thrown.code, message, thrown.cause?.message ?? '')
  }
}

/** The error for calls on a closed client. @internal */
export function clientClosed(): ClosedError {
  return new ClosedError('the client is closed; call connect() again')
}

/** The type of a value, for an error about it. @internal */
export function kind(value: unknown): string {
  if (value === null) return 'null'
  if (Array.isArray(value)) return 'an array'
  switch (typeof value) {
    case 'undefined':
      return 'undefined'
    case 'object':
      return 'an object'
    default:
      return `a ${typeof value}`
  }
}
