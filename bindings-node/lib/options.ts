/** The options of a consumer: checked at the call, before anything is asked of a broker. */

import { types } from 'node:util'

import { type Duration, milliseconds } from './duration.js'
import { InvalidOptionError, InvalidTypeError, asked, kind } from './errors.js'
import type { Event } from './events.js'
import type { Message } from './message.js'
import { native, type Options } from './native.js'
import { type ErrorClass, Policy, Rule, type RuleInput, errorClass, inputOf } from './policy.js'
import { isPlain, named } from './values.js'

/** How failed messages wait; with `service` they are handed over to `retryrmq serve`, whose policy decides. */
export type Strategy = 'retry-queues' | 'dead-letter' | 'native' | 'delayed-exchange' | 'service'

/** The type of the queues in which messages wait and are parked. */
export type QueueType = 'quorum' | 'classic'

/**
 * What a missing work queue is made with: `quorum` or `classic`, and what the broker gives up on goes to the parking queue; or
 * exactly these arguments, `{}` for none. `existing`: it is never made.
 */
export type WorkQueue = 'quorum' | 'classic' | 'existing' | { readonly [argument: string]: string | number | bigint | boolean }

/** What a handler is given besides its message. */
export interface Context {
  /**
   * Aborts when the handler took longer than `handlerTimeout`, or its consumer came to its end without it. Whatever the
   * handler does then, its attempt has ended.
   */
  readonly signal: AbortSignal
}

/**
 * Handles a message: when it returns, or what it returned resolves, the message is acknowledged; an error retries it. A
 * generator, a function or an array of promises is work that nobody would do, and fails the attempt. `Body` is what
 * `message.json()` returns.
 */
export type Handler<Body = unknown> = (message: Message<Body>, context: Context) => unknown

/**
 * The retry budget: when most attempts fail, the messages are not the problem.
 *
 * More than the share `failures` of the last `window` attempts failed: the consumer stops taking messages for `duration`;
 * then one message is taken as a probe, whose success ends the pause and whose failure renews it.
 */
export interface Pause {
  /** The share that is too much; 0.5 by default. */
  failures?: number
  /** Of how many attempts; 20 by default. */
  window?: number
  /** For how long; 30 seconds by default. */
  duration?: Duration
}

/** The options of `consume`, in the order they have in every language. */
export interface ConsumerOptions {
  /** The queue to consume. */
  queue: string
  /** Whether failed messages are retried and parked. Off, a failure is rejected without requeue. Off by default. */
  dlx?: boolean
  /** The policy for failures that no rule matches; `exponential(1s, factor=4, max=5m, retries=5)` by default. */
  retry?: Policy | string
  /** How failed messages wait; `retry-queues` by default. */
  strategy?: Strategy
  /** Rules that choose another policy; the first that holds decides. */
  rules?: readonly (Rule | string)[]
  /** How many messages may be unacknowledged at a time, 1 to 65535; 64 by default. */
  prefetch?: number
  /**
   * Which consumers of the queue come first: while one of a higher priority has room in its `prefetch`, it gets the messages. May be
   * negative; 0 by default.
   */
  priority?: number
  /** How many handlers run at a time; 16 by default. */
  concurrency?: number
  /** How long a handler may take; longer is a failed attempt. No limit by default. */
  handlerTimeout?: Duration
  /** Whether messages that are given up are parked; otherwise they are dropped. On by default. */
  park?: boolean
  /** Stops taking messages for a while when too many attempts fail. Off by default. */
  pause?: Pause | boolean
  /** Told of every event. */
  onEvent?: (event: Event) => void
  /** Error classes that no retry can mend: the message is parked at once. */
  fatal?: ErrorClass | readonly ErrorClass[]
  /** With `dlx`: whether missing queues are made. On by default. */
  declare?: boolean
  /**
   * What the queue itself is made with when it is missing; a quorum queue by default. A queue that exists is taken as
   * it is. Everybody else who declares the queue must use the same arguments. With `existing` it is never made, and
   * without it `consume` rejects with a {@link QueueNotFoundError}.
   */
  workQueue?: WorkQueue
  /**
   * Consumes a queue although its name is one that waiting and parking queues have, such as `orders.parked`: that takes away
   * what is parked. Off by default, and such a name is refused.
   */
  reservedName?: boolean
  /** How long closing waits for running handlers; 30 seconds by default. */
  drainTimeout?: Duration
  /** Crashes after which a message is parked; 10 by default. */
  crashLimit?: number
  /** Deferrals after which a message is parked; 1000 by default. */
  deferLimit?: number
  /**
   * Whether this consumer keeps the process alive for as long as it runs, as a socket does. On by default; `false` is as
   * `unref()` from the beginning.
   */
  keepAlive?: boolean
  /** Closes the consumer when it aborts. */
  signal?: AbortSignal
}

/** A consumer to be: everything that is known of it before there is a connection. @internal */
export interface Plan {
  queue: string
  native: Options
  fatal: readonly ErrorClass[]
  onEvent: ((event: Event) => void) | undefined
  keepAlive: boolean
  signal: AbortSignal | undefined
  handler: Handler
}

function whole(option: string, value: unknown, least: number, most: number): number {
  if (typeof value !== 'number') throw new InvalidTypeError(`\`${option}\` must be a number, not ${kind(value)}`)
  if (!Number.isInteger(value) || value < least || value > most) {
    throw new InvalidOptionError(`\`${option}\` must be a whole number between ${least} and ${most}, not ${value}`)
  }
  return value
}

/**
 * Refuses names that are no options. What is inherited is none of its business: an option may be, and is read by its name.
 *
 * @internal
 */
export function onlyKnown(options: object, known: readonly string[]): void {
  const unknown = Object.keys(options).find((name) => !known.includes(name))
  if (unknown === undefined) return
  throw new InvalidTypeError(`there is no option \`${unknown}\`; the options are ${known.join(', ')}`)
}

/** @internal */
export function flag(option: string, value: unknown): boolean {
  if (typeof value !== 'boolean') throw new InvalidTypeError(`\`${option}\` must be true or false, not ${kind(value)}`)
  return value
}

/** @internal */
export function string(option: string, value: unknown): string {
  if (typeof value !== 'string') throw new InvalidTypeError(`\`${option}\` must be a string, not ${kind(value)}`)
  return value
}

/** An abort signal, of whatever realm. @internal */
export function abortSignal(value: unknown): AbortSignal {
  const signal = value as AbortSignal
  if (typeof value !== 'object' || value === null || typeof signal.addEventListener !== 'function') {
    const what = typeof value === 'object' && value !== null ? 'an object without `addEventListener`' : kind(value)
    throw new InvalidTypeError(`\`signal\` must be an AbortSignal, not ${what}`)
  }
  return signal
}

function policy(value: unknown): string {
  if (value instanceof Policy) return value.text
  if (typeof value === 'string') return asked(() => native.readPolicy(value), 'retry').text
  throw new InvalidTypeError(`\`retry\` must be a policy or a text such as 'fixed(5s, retries=3)', not ${kind(value)}`)
}

function rules(value: unknown): (RuleInput | string)[] {
  if (!Array.isArray(value)) throw new InvalidTypeError(`\`rules\` must be an array of rules or texts, not ${kind(value)}`)
  // Not by its own `map`, which passes over holes.
  return Array.from(value as unknown[], (rule) => {
    if (rule instanceof Rule) return inputOf(rule)
    if (typeof rule === 'string') return rule
    throw new InvalidTypeError(`\`rules\` must hold rules or texts, not ${kind(rule)}`)
  })
}

function pause(value: unknown): object {
  const given: Pause = value === true ? {} : (value as Pause)
  if (typeof given !== 'object' || given === null) {
    throw new InvalidTypeError(`\`pause\` must be an object, true or false, not ${kind(value)}`)
  }
  const { failures, window, duration, ...rest } = given
  const unknown = Object.keys(rest)[0]
  if (unknown !== undefined) {
    throw new InvalidTypeError(`\`pause\` has no option \`${unknown}\`; it has failures, window and duration`)
  }
  if (failures !== undefined && typeof failures !== 'number') {
    throw new InvalidTypeError(`\`failures\` of \`pause\` must be a number, not ${kind(failures)}`)
  }
  if (failures !== undefined && !Number.isFinite(failures)) {
    throw new InvalidOptionError(`\`failures\` of \`pause\` cannot be ${failures}; it is a share of the attempts, such as 0.5`)
  }
  // What is not said is the core's to decide.
  return {
    failures,
    window: window === undefined ? undefined : whole('window', window, 1, 10_000),
    duration: duration === undefined ? undefined : seconds(duration, 'duration'),
  }
}

function fatal(value: unknown): readonly ErrorClass[] {
  const classes: unknown[] = Array.isArray(value) ? Array.from(value as unknown[]) : [value]
  return classes.map((Class) => errorClass('fatal', Class))
}

/** The text that every language reads: a word, or the arguments as JSON, in which a bigint is a number like others. */
function workQueue(value: unknown): string {
  if (typeof value === 'string') return value
  if (!isPlain(value)) {
    throw new InvalidTypeError(`\`workQueue\` must be a word such as 'existing', or an object of arguments, not ${named(value)}`)
  }
  const all = Object.entries(value).map(([name, argument]: [string, unknown]) => {
    if (typeof argument === 'bigint') return `${JSON.stringify(name)}:${argument}`
    if (typeof argument === 'string' || typeof argument === 'boolean' || Number.isSafeInteger(argument)) {
      return `${JSON.stringify(name)}:${JSON.stringify(argument)}`
    }
    const must = `\`workQueue\`: the argument \`${name}\` must be a string, a whole number, true or false, not`
    if (typeof argument === 'number') throw new InvalidOptionError(`${must} ${argument}`)
    throw new InvalidTypeError(`${must} ${kind(argument)}`)
  })
  return `{${all.join(',')}}`
}

/** As the core counts it. */
function seconds(value: unknown, option: string): number {
  return milliseconds(value as Duration, option) / 1000
}

/** The name that the core has for it. */
function inCore(option: string): string {
  return option.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
}

/** What the core reads of an option; what is undefined is its to decide. */
const READ = {
  queue: (value: unknown) => string('queue', value),
  dlx: (value: unknown) => flag('dlx', value),
  retry: policy,
  strategy: (value: unknown) => string('strategy', value),
  rules,
  prefetch: (value: unknown) => whole('prefetch', value, 1, 65_535),
  priority: (value: unknown) => whole('priority', value, -(2 ** 31), 2 ** 31 - 1),
  concurrency: (value: unknown) => whole('concurrency', value, 1, 100_000),
  handlerTimeout: (value: unknown) => seconds(value, 'handlerTimeout'),
  park: (value: unknown) => flag('park', value),
  pause: (value: unknown) => (value === false ? undefined : pause(value)),
  declare: (value: unknown) => flag('declare', value),
  workQueue,
  reservedName: (value: unknown) => flag('reservedName', value),
  drainTimeout: (value: unknown) => seconds(value, 'drainTimeout'),
  crashLimit: (value: unknown) => whole('crashLimit', value, 1, 1_000_000),
  deferLimit: (value: unknown) => whole('deferLimit', value, 1, 1_000_000),
}
const NATIVE = Object.keys(READ) as (keyof typeof READ)[]
const KNOWN = [...NATIVE, 'onEvent', 'fatal', 'keepAlive', 'signal']

/** Checks all options; throws naming the one that cannot work. @internal */
export function plan(options: ConsumerOptions, handler: Handler): Plan {
  if (typeof options !== 'object' || options === null) {
    throw new InvalidTypeError(`the options of a consumer must be an object with \`queue\`, not ${kind(options)}`)
  }
  if (typeof handler !== 'function') throw new InvalidTypeError(`the handler must be a function, not ${kind(handler)}`)
  if (types.isGeneratorFunction(handler)) {
    throw new InvalidTypeError(
      'the handler is a generator function: calling it makes a generator, which nobody runs; write it without `*`',
    )
  }
  const input: { [name: string]: unknown } = { queue: READ.queue(options.queue) }
  onlyKnown(options, KNOWN)
  for (const name of NATIVE) {
    const value: unknown = options[name]
    if (value !== undefined) input[inCore(name)] = READ[name](value)
  }
  const { onEvent, signal } = options
  const classes = options.fatal === undefined ? [] : fatal(options.fatal)
  if (classes.length > 0) input['fatal'] = true
  if (onEvent !== undefined && typeof onEvent !== 'function') {
    throw new InvalidTypeError(`\`onEvent\` must be a function, not ${kind(onEvent)}`)
  }
  return {
    queue: options.queue,
    native: asked(() => new native.Options(JSON.stringify(input))),
    fatal: classes,
    onEvent,
    keepAlive: options.keepAlive === undefined ? true : flag('keepAlive', options.keepAlive),
    signal: signal === undefined ? undefined : abortSignal(signal),
    handler,
  }
}
