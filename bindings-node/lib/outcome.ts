/** What a handler can throw besides errors, and what becomes of what it throws. */

import { inspect } from 'node:util'

import { type Duration, bounded, milliseconds, written } from './duration.js'
import { InvalidTypeError, kind } from './errors.js'
import type { ErrorClass } from './policy.js'
import type { Writer } from './wire.js'

const BRAND = Symbol.for('retryrmq.signal')

/** Thrown by a handler: the attempt failed, and the message comes back in `delay`, whatever the policy says. */
export class RetryAfter extends Error {
  /** Milliseconds. */
  readonly delay: number
  /** @internal */
  readonly [BRAND] = 'retry'

  /** The `cause` is kept as what went wrong. */
  constructor(delay: Duration, message = '', options?: { cause?: unknown }) {
    super(message, options)
    this.delay = milliseconds(delay, 'delay')
  }

  override get name(): string {
    return 'RetryAfter'
  }
}

/** Thrown by a handler: the message is parked now, with this reason for people to read. */
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

/** Thrown by a handler: not now; the message comes back in `delay`, and no attempt is spent. */
export class Defer extends Error {
  /** Milliseconds. */
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
 * To be thrown: the attempt failed, and the message comes back in `delay`, whatever the policy says. It counts as a retry.
 *
 *     throw retryAfter('30s')
 *     throw retryAfter('30s', error)    // keeps the error as what went wrong
 */
export function retryAfter(delay: Duration, why?: unknown): RetryAfter {
  if (why === undefined) return new RetryAfter(delay)
  return typeof why === 'string' ? new RetryAfter(delay, why) : new RetryAfter(delay, '', { cause: why })
}

/** To be thrown: the message is parked now, with this reason for people to read. */
export function park(reason: string, options?: { cause?: unknown }): Park {
  return new Park(reason, options)
}

/** To be thrown: not now; the message comes back in `delay`, and no attempt is spent. */
export function defer(delay: Duration): Defer {
  return new Defer(delay)
}

type Signal = RetryAfter | Park | Defer

/** The end of an attempt that was not a success. @internal */
export interface End {
  what: 'retry' | 'park' | 'fatal' | 'defer'
  delay: number | undefined
  error: string
  type: string
  kinds: string[]
  stack: string | undefined
}

/** The most of an error's text that crosses; the core keeps less. */
const MOST_TEXT = 65_536
/** The most of each end of a stack that crosses; the core cuts it from the middle to less. */
const MOST_STACK = 32_768
const MOST_NAME = 1024

/** How deep causes are followed; they may go round. */
const DEPTH = 16

/** Whether it is a signal that was returned and not thrown. @internal */
export function isSignal(value: unknown): value is Signal {
  return typeof value === 'object' && value !== null && typeof peek(value, BRAND) === 'string'
}

/**
 * The end of an attempt that threw. Whatever it threw: getters may throw, proxies may refuse, texts may be none.
 *
 * A signal counts wherever it stands in the chain of causes. `wanted` says whether anybody wants to know the kinds of the
 * error, and its stack if it is retried.
 *
 * @internal
 */
export function judged(
  thrown: unknown,
  fatal: readonly ErrorClass[],
  wanted: { kinds: boolean; stack: boolean },
): End {
  const signal = causes(thrown).find(isSignal)
  const what = signal === undefined ? undefined : (peek(signal, BRAND) as Signal[typeof BRAND])
  const delay = askedFor(peek(signal, 'delay'))
  if (what === 'defer' && delay !== undefined) return { what, delay, error: '', type: '', kinds: [], stack: undefined }
  // What a signal was thrown because of is what went wrong; without that, nothing has a type.
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
  } else if (what === 'retry') {
    end.error = message(signal) ?? (own ? 'the handler asked for a retry' : end.error)
  } else if (fatal.some((Class) => isA(thrown, Class))) {
    end.what = 'fatal'
  }
  // Whoever is parked before the last retry has a stack as well.
  if (wanted.stack || end.what !== 'retry') end.stack = stack(thrown)
  end.error = end.error.slice(0, MOST_TEXT)
  return end
}

/** The delay of a signal, which anybody may have written into it. A deferral without one would come back at once for ever. */
function askedFor(delay: unknown): number | undefined {
  return typeof delay === 'number' && delay >= 0 ? bounded(delay) : undefined
}

/** The end of an attempt that took longer than its limit, and why its signal aborts. @internal */
export function timedOut(limit: number): { end: End; reason: DOMException } {
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

/** Whether it is to be awaited. Its getter may throw. @internal */
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

/** A property, whatever its getter does. */
function peek(from: unknown, key: PropertyKey): unknown {
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

/** A name for rules and operators, of which there is no use in more. */
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

/** What an error says, if it is one and says something. @internal */
export function message(thrown: unknown): string | undefined {
  return named(thrown, 'message')
}

/** What went wrong, in one text. */
function line(thrown: unknown): string {
  if (typeof thrown === 'string') return thrown === '' ? 'the handler threw an empty string' : thrown
  if (thrown === undefined || thrown === null) return `the handler threw ${thrown}`
  return message(thrown) ?? (errorLike(thrown) ? type(thrown) : `the handler threw ${shown(thrown)}`)
}

function errorLike(thrown: unknown): boolean {
  return isA(thrown, Error) || named(thrown, 'stack') !== undefined
}

/** What is no error, as text. @internal */
export function shown(thrown: unknown): string {
  try {
    return inspect(thrown, { depth: 1, customInspect: false, breakLength: Infinity })
  } catch {
    return 'something that cannot be shown'
  }
}

/** The name that rules and operators know it by. */
function type(thrown: unknown): string {
  const own = short(thrown, 'name')
  if (typeof thrown === 'object' && own !== undefined && own !== 'Error') return own
  const constructor = short(peek(thrown, 'constructor'), 'name')
  if (typeof thrown !== 'object' || constructor === undefined || constructor === 'Object') return own ?? ''
  return constructor
}

/** What else it is: the classes it is made from, and its `code`. */
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
    // a proxy that says nothing of itself
  }
  for (const key of ['name', 'code']) {
    const name = short(thrown, key)
    if (name !== undefined) names.add(name)
  }
  return [...names]
}

/** The stacks of an error, of the errors it gathers, and of its causes. The core cuts it from the middle. @internal */
export function stack(thrown: unknown): string | undefined {
  const told: string[] = []
  const tell = (one: unknown, how: string): void => {
    const text = named(one, 'stack') ?? (errorLike(one) ? line(one) : undefined)
    if (text !== undefined) told.push(told.length === 0 ? ends(text) : `${how}: ${ends(text)}`)
  }
  for (const cause of causes(thrown)) {
    tell(cause, 'caused by')
    for (const one of gathered(cause)) tell(one, 'one of its errors')
  }
  return told.length === 0 ? undefined : ends(told.join('\n'))
}

/** Both ends of a long stack. */
function ends(text: string): string {
  return text.length <= 2 * MOST_STACK ? text : `${text.slice(0, MOST_STACK)}…${text.slice(-MOST_STACK)}`
}

/** What an `AggregateError` holds. */
function gathered(thrown: unknown): unknown[] {
  const errors = peek(thrown, 'errors')
  try {
    return Array.isArray(errors) ? errors.slice(0, DEPTH) : []
  } catch {
    return []
  }
}
