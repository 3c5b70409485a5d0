/** What a handler can throw besides errors, and what happens to the message then. */

import { inspect } from 'node:util'

import { type Duration, bounded, milliseconds, written } from './duration.js'
import { InvalidTypeError, kind } from './errors.js'
import type { ErrorClass } from './policy.js'
import type { Writer } from './byte_writer.js'

const BRAND = Symbol.for('retryrmq.signal')

/** Throw it in a handler: the attempt failed; retry after `delay`, whatever the policy's delay is. See {@link retryAfter}. */
export class RetryAfter extends Error {
  /** In milliseconds. */
  readonly delay: number
  /** @internal */
  readonly [BRAND] = 'retry'

  /** A `cause` is recorded as the failure. */
  constructor(delay: Duration, message = '', options?: { cause?: unknown }) {
    super(message, options)
    this.delay = milliseconds(delay, 'delay')
  }

  override get name(): string {
    return 'RetryAfter'
  }
}

/** Throw it in a handler: the message is parked now as `requested`. See {@link park}. */
export class Park extends Error {
  /** @internal */
  readonly [BRAND] = 'park'

  constructor(reason: string, options?: { cause?: unknown }) {
    if (typeof reason !== 'string') throw new InvalidTypeError(`\`reason\` must be a string, not ${kind(reason)}`)
    super(reason, options)
  }

  override get name(): string {
    return 'Park'
  }
}

/** Throw it in a handler: its body is not what the handler reads, and the message is parked now as `undecodable`. See {@link undecodable}. */
export class Undecodable extends Error {
  /** @internal */
  readonly [BRAND] = 'undecodable'

  /** A `cause` is recorded as the failure. */
  constructor(message = '', options?: { cause?: unknown }) {
    super(message, options)
  }

  override get name(): string {
    return 'Undecodable'
  }
}

/** Throw it in a handler: the message is delivered again after `delay`, and uses up no attempt. See {@link defer}. */
export class Defer extends Error {
  /** In milliseconds. */
  readonly delay: number
  /** @internal */
  readonly [BRAND] = 'defer'

  constructor(delay: Duration) {
    const ms = milliseconds(delay, 'delay')
    super(`deferred for ${written(ms)}`)
    this.delay = ms
  }

  override get name(): string {
    return 'Defer'
  }
}

/**
 * Makes an error to throw: the attempt failed; retry after `delay`, whatever the policy's delay is. It counts as a retry; if no
 * retries are left, the message is parked. Without `dlx` it is rejected.
 *
 *     throw retryAfter('30s')
 *     throw retryAfter('30s', error)    // records `error` as the failure
 */
export function retryAfter(delay: Duration, why?: unknown): RetryAfter {
  if (why === undefined) return new RetryAfter(delay)
  return typeof why === 'string' ? new RetryAfter(delay, why) : new RetryAfter(delay, '', { cause: why })
}

/**
 * Makes an error to throw: the message is parked now as `requested`. `reason` is written into its record, for people to read.
 * Without `dlx` the message is rejected.
 */
export function park(reason: string, options?: { cause?: unknown }): Park {
  return new Park(reason, options)
}

/**
 * Makes an error to throw: the body is not what the handler reads, so the message is parked now as `undecodable`. `why` says what is wrong
 * with it; an error is recorded as the failure, with its type. Without `dlx` the message is rejected.
 *
 * The text is written into the record, the log and the events, so keep the body out of it. For bodies in JSON, see {@link typed}.
 *
 *     throw undecodable('version 9 of an order is not known')
 *     throw undecodable(error)
 */
export function undecodable(why: unknown): Undecodable {
  return typeof why === 'string' ? new Undecodable(why) : new Undecodable('', { cause: why })
}

/**
 * Makes an error to throw: the message is delivered again after `delay`, and uses up no attempt. After `deferLimit` deferrals it is
 * parked as `exhausted`. Without `dlx` the consumer holds the message for at most a minute, then publishes a copy to the tail of its queue;
 * after `deferLimit` deferrals it is rejected.
 */
export function defer(delay: Duration): Defer {
  return new Defer(delay)
}

/** What an attempt has failed with is fatal in this attempt: a verdict on the error itself would hold in all others, too. @internal */
export class Fatal extends Error {
  constructor(error: unknown) {
    super('fatal', { cause: error })
  }
}

/** What has failed, without the verdict. @internal */
export function failureOf(thrown: unknown): unknown {
  return isA(thrown, Fatal) ? (thrown as Fatal).cause : thrown
}

type Signal = RetryAfter | Park | Defer | Undecodable

/** The end of an attempt that was not a success. @internal */
export interface End {
  what: 'retry' | 'park' | 'fatal' | 'defer' | 'undecodable'
  delay: number | undefined
  error: string
  type: string
  kinds: string[]
  stack: string | undefined
}

/** The most of an error's text that is passed to the core, which keeps less. */
const MOST_TEXT = 65_536
/** The most of each end of a stack that is passed to the core, which cuts more from the middle. */
const MOST_STACK = 32_768
const MOST_NAME = 1024

/** How many causes are followed; they may be circular. */
const DEPTH = 16

/** Whether a value is a signal, for example one that was returned and not thrown. @internal */
export function isSignal(value: unknown): value is Signal {
  return typeof value === 'object' && value !== null && typeof peek(value, BRAND) === 'string'
}

/**
 * The end of an attempt that threw. The thrown value can be anything: getters may throw, proxies may refuse, texts may be missing.
 *
 * A signal may stand anywhere in the chain of causes. `wanted` says whether the kinds of the error are needed, and its stack if it is
 * retried.
 *
 * @internal
 */
export function classify(
  thrown: unknown,
  fatal: readonly ErrorClass[],
  wanted: { kinds: boolean; stack: boolean },
): End {
  const failure = failureOf(thrown)
  if (failure !== thrown) {
    const end = classify(failure, [], { ...wanted, stack: true })
    return end.what === 'retry' && end.delay === undefined ? { ...end, what: 'fatal' } : end
  }
  const signal = causes(thrown).find(isSignal)
  const what = signal === undefined ? undefined : (peek(signal, BRAND) as Signal[typeof BRAND])
  const delay = validDelay(peek(signal, 'delay'))
  if (what === 'defer' && delay !== undefined) return { what, delay, error: '', type: '', kinds: [], stack: undefined }
  // The cause of a signal is the failure. Without a cause there is no error type.
  const cause = signal === thrown ? peek(thrown, 'cause') : undefined
  const subject = cause === undefined ? thrown : cause
  const own = subject === signal
  const end: End = {
    what: 'retry',
    delay,
    error: line(subject),
    type: own ? '' : type(subject),
    kinds: wanted.kinds && !own ? kinds(subject) : [],
    stack: undefined,
  }
  if (what === 'park') {
    end.what = 'park'
    end.error = message(signal) ?? end.error
  } else if (what === 'undecodable') {
    end.what = 'undecodable'
    end.error = message(signal) ?? (own ? 'the handler cannot read the body' : end.error)
  } else if (what === 'retry') {
    end.error = message(signal) ?? (own ? 'the handler asked for a retry' : end.error)
  } else if (fatal.some((Class) => isA(thrown, Class))) {
    end.what = 'fatal'
  }
  // A message that is parked before its last retry needs the stack, too.
  if (wanted.stack || end.what !== 'retry') end.stack = stack(thrown)
  end.error = end.error.slice(0, MOST_TEXT)
  return end
}

/** The delay of a signal; user code may have changed it. A deferral without a delay would come back at once, forever. */
function validDelay(delay: unknown): number | undefined {
  return typeof delay === 'number' && delay >= 0 ? bounded(delay) : undefined
}

/** The end of an attempt that ran longer than its limit, and the reason with which its signal aborts. @internal */
export function timeoutEnd(limit: number): { end: End; reason: DOMException } {
  const error = `the handler took longer than ${written(limit)}`
  const end: End = {
    what: 'retry',
    delay: undefined,
    error,
    type: 'HandlerTimeout',
    kinds: ['TimeoutError'],
    stack: undefined,
  }
  return { end, reason: new DOMException(error, 'TimeoutError') }
}

/** Whether a value can be awaited. Its getter may throw. @internal */
export function isThenable(value: unknown): value is PromiseLike<unknown> {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) return false
  return typeof (value as { then?: unknown }).then === 'function'
}

/** Writes the end of the attempt at the message with this token. @internal */
export function writeEnd(out: Writer, token: number, end: End | undefined): void {
  out.f64(token)
  if (end === undefined) return out.u8(97) // a: handled
  out.u8(end.what.charCodeAt(0))
  out.maybeF64(end.delay)
  if (end.what === 'defer') return
  out.text(end.error)
  out.text(end.type)
  out.u32(end.kinds.length)
  for (const name of end.kinds) out.text(name)
  out.maybe(end.stack)
}

/** A property; `undefined` if its getter throws. @internal */
export function peek(from: unknown, key: PropertyKey): unknown {
  if ((typeof from !== 'object' && typeof from !== 'function') || from === null) return undefined
  try {
    return (from as { [key: PropertyKey]: unknown })[key]
  } catch {
    return undefined
  }
}

function named(from: unknown, key: PropertyKey): string | undefined {
  const value = peek(from, key)
  return typeof value === 'string' && value !== '' ? value : undefined
}

/** A name for rules and operators, cut to a useful length. */
function short(from: unknown, key: PropertyKey): string | undefined {
  return named(from, key)?.slice(0, MOST_NAME)
}

function isA(thrown: unknown, Class: ErrorClass): boolean {
  try {
    return thrown instanceof Class
  } catch {
    return false
  }
}

function causes(thrown: unknown): unknown[] {
  const chain: unknown[] = []
  let next = thrown
  while (next !== undefined && chain.length < DEPTH && !chain.includes(next)) {
    chain.push(next)
    next = peek(next, 'cause')
  }
  return chain
}

/** The message of an error, if it has one. @internal */
export function message(thrown: unknown): string | undefined {
  return named(thrown, 'message')
}

/** The failure as one text. */
function line(thrown: unknown): string {
  if (typeof thrown === 'string') return thrown === '' ? 'the handler threw an empty string' : thrown
  if (thrown === undefined || thrown === null) return `the handler threw ${thrown}`
  return message(thrown) ?? (isErrorLike(thrown) ? type(thrown) : `the handler threw ${shown(thrown)}`)
}

/** Whether a value is an error, also of another realm. @internal */
export function isErrorLike(thrown: unknown): boolean {
  return isA(thrown, Error) || named(thrown, 'stack') !== undefined
}

/** A value that is not an error, as text. @internal */
export function shown(thrown: unknown): string {
  try {
    return inspect(thrown, { depth: 1, customInspect: false, breakLength: Infinity })
  } catch {
    return 'something that cannot be shown'
  }
}

/** The name of an error for rules and operators. */
function type(thrown: unknown): string {
  const own = short(thrown, 'name')
  if (typeof thrown === 'object' && own !== undefined && own !== 'Error') return own
  const constructor = short(peek(thrown, 'constructor'), 'name')
  if (typeof thrown !== 'object' || constructor === undefined || constructor === 'Object') return own ?? ''
  return constructor
}

/** Other names of an error: its base classes, and its `code`. */
function kinds(thrown: unknown): string[] {
  const names = new Set<string>()
  try {
    let next: unknown = typeof thrown === 'object' && thrown !== null ? Object.getPrototypeOf(thrown) : null
    for (let left = DEPTH; next !== null && left > 0; left--) {
      const name = short(peek(next, 'constructor'), 'name')
      if (name !== undefined && name !== 'Object') names.add(name)
      next = Object.getPrototypeOf(next)
    }
  } catch {
    // a proxy that refuses
  }
  for (const key of ['name', 'code']) {
    const name = short(thrown, key)
    if (name !== undefined) names.add(name)
  }
  return [...names]
}

/** The stacks of an error, of the errors it contains, and of its causes. The core cuts it from the middle. @internal */
export function stack(thrown: unknown): string | undefined {
  const stacks: string[] = []
  const add = (one: unknown, how: string): void => {
    const text = named(one, 'stack') ?? (isErrorLike(one) ? line(one) : undefined)
    if (text !== undefined) stacks.push(stacks.length === 0 ? ends(text) : `${how}: ${ends(text)}`)
  }
  for (const cause of causes(thrown)) {
    add(cause, 'caused by')
    for (const one of aggregatedErrors(cause)) add(one, 'one of its errors')
  }
  return stacks.length === 0 ? undefined : ends(stacks.join('\n'))
}

/** Both ends of a long stack. */
function ends(text: string): string {
  return text.length <= 2 * MOST_STACK ? text : `${text.slice(0, MOST_STACK)}…${text.slice(-MOST_STACK)}`
}

/** The errors in an `AggregateError`. */
function aggregatedErrors(thrown: unknown): unknown[] {
  const errors = peek(thrown, 'errors')
  try {
    return Array.isArray(errors) ? errors.slice(0, DEPTH) : []
  } catch {
    return []
  }
}
