/** The options of a consumer. They are checked at the call, before anything is sent to a broker. */

import { types } from 'node:util'

import { withOwnArray } from './batch_results.js'
import { type Duration, milliseconds } from './duration.js'
import { InvalidOptionError, InvalidTypeError, callNative, choices, kind } from './errors.js'
import type { Event } from './events.js'
import type { Message } from './message.js'
import { type Middleware, functions, withMiddleware } from './middleware.js'
import { type Options, native } from './native.js'
import { type ErrorClass, Policy, Rule, type RuleInput, errorClass, inputOf } from './policy.js'
import { isPlain, named } from './values.js'

/** How failed messages wait. With `service` they are handed over to `retryrmq serve`, whose policy decides. */
export type Strategy = 'retry-queues' | 'dead-letter' | 'native' | 'delayed-exchange' | 'service'

/** The type of the waiting and parking queues. */
export type QueueType = 'quorum' | 'classic'

/**
 * How a missing work queue is created. `quorum` or `classic`: of this type, and messages that the broker itself gives up on go to
 * the parking queue. An object: with exactly these arguments, `{}` for none. `existing`: it is never created.
 */
export type WorkQueue = 'quorum' | 'classic' | 'existing' | { readonly [argument: string]: string | number | bigint | boolean }

/** What a handler gets besides its message. */
export interface Context {
  /**
   * Aborts when the handler has run longer than `handlerTimeout`, or when its consumer has ended without waiting for it. The
   * attempt has ended then, whatever the handler still does.
   */
  readonly signal: AbortSignal
}

/**
 * Handles a message. When it returns, or the promise it returned resolves, the message is acknowledged. When it throws or rejects,
 * the message is retried. A returned generator, function or array of promises is work that would never run, so the attempt has
 * failed. Other values are ignored. `Body` is what `message.json()` returns.
 */
export type Handler<Body = unknown> = (message: Message<Body>, context: Context) => unknown

/**
 * The retry budget: when a consumer stops taking messages for a while.
 *
 * If more than the share `failures` of the last `window` attempts failed, the consumer takes no messages for `duration`. Then it
 * takes one message as a probe: if it succeeds, the consumer resumes; if it fails, the next pause begins.
 */
export interface Pause {
  /** The share of failed attempts above which the consumer pauses: at least 0 and below 1; 0.5 by default. */
  failures?: number | undefined
  /** How many of the last attempts are counted: 1 to 10 000; 20 by default. */
  window?: number | undefined
  /** How long a pause lasts, at most 365 days; 30 seconds by default. */
  duration?: Duration | undefined
}

/** The options of `consume`, in the same order as in every language. */
export interface ConsumerOptions {
  /** The queue to consume. */
  queue: string
  /**
   * Whether failed messages are retried and parked. Off by default: a failed message is rejected without requeue, and the queue's
   * own dead-lettering decides. Without a dead-letter exchange the broker drops it. A consumer that does not get this option logs a
   * warning when it starts; `false` silences it.
   */
  dlx?: boolean | undefined
  /** The policy for failures that no rule matches. The default is `exponential(1s, factor=4, max=5m, retries=5)`. Needs `dlx`. */
  retry?: Policy | string | undefined
  /** How failed messages wait; `retry-queues` by default. */
  strategy?: Strategy | undefined
  /** Rules that choose another policy. The first rule that matches decides. Needs `dlx`. */
  rules?: readonly (Rule | string)[] | undefined
  /** How many messages may be unacknowledged at a time (AMQP `basic.qos`): 1 to 65535, 64 by default. */
  prefetch?: number | undefined
  /**
   * How many bytes of bodies of unacknowledged messages the consumer holds, about. The broker sends fewer messages while they are large. What
   * does not fit is returned and comes again. A message larger than that is handled while no other one is. No limit by default.
   */
  prefetchBytes?: number | undefined
  /**
   * The priority among the consumers of the queue (`x-priority`): while a consumer of a higher priority has room in its `prefetch`,
   * it gets all messages. May be negative; 0 by default.
   */
  priority?: number | undefined
  /** How many handlers run at a time: 1 to 100 000; 16 by default. */
  concurrency?: number | undefined
  /** How many messages a handler gets at once at most; see {@link BatchOptions}. By default it gets single messages. */
  batch?: undefined
  /** How long an incomplete batch waits for more messages; see {@link BatchOptions}. */
  batchWait?: undefined
  /**
   * How long a handler may run, at most 365 days. After that the attempt has failed, even if the handler blocks the event loop and succeeds
   * later. No limit by default.
   */
  handlerTimeout?: Duration | undefined
  /** Whether messages that are given up are parked. On by default. Off: they are acknowledged and dropped. Needs `dlx`. */
  park?: boolean | undefined
  /** Stops taking messages for a while when too many attempts fail. `true` for the default {@link Pause}. Off by default. */
  pause?: Pause | boolean | undefined
  /**
   * A function that is called with each event, in order, on the event loop. Up to 10 000 events wait for it; further ones are dropped
   * with a warning. Its errors are logged and do not affect messages.
   */
  onEvent?: ((event: Event) => void) | undefined
  /** Error classes that no retry can fix: the message is parked at once as `fatal`. Needs `dlx`. */
  fatal?: ErrorClass | readonly ErrorClass[] | undefined
  /** Whether missing queues are created. On by default. Off: they must exist, and the user needs no `configure` permission. */
  declare?: boolean | undefined
  /**
   * How the work queue is created if it is missing; a quorum queue by default. An existing queue is used as it is; only the strategies
   * `dead-letter` and `native` compare its arguments. Everyone who declares the queue must use the same arguments. With `existing` it is
   * never created: `consume` rejects with a {@link QueueNotFoundError} until somebody else has declared it.
   */
  workQueue?: WorkQueue | undefined
  /**
   * Allows a queue whose name is reserved for the queues of another one: `*.parked`, `*.unreadable` or `*.retry.<number>`. Consuming it
   * removes the messages there. Off by default: such a name is refused.
   */
  reservedName?: boolean | undefined
  /** How long closing waits for running handlers. After that, their messages are requeued. 30 seconds by default, at most 365 days. */
  drainTimeout?: Duration | undefined
  /** Crashes of its consumer after which a message is parked as `delivery-limit`: 1 to 1 000 000; 10 by default. */
  crashLimit?: number | undefined
  /** Deferrals after which a message is parked as `exhausted`: 1 to 1 000 000; 1000 by default. */
  deferLimit?: number | undefined
  /**
   * Functions around every attempt, see {@link Middleware}. The first is the outermost. Those of the client are around those of its
   * consumers. None by default.
   */
  middleware?: readonly Middleware[] | undefined
  /** Whether this consumer keeps the process alive while it runs, as a socket does. On by default. `false` is the same as `unref()`. */
  keepAlive?: boolean | undefined
  /** A signal that closes the consumer when it aborts. */
  signal?: AbortSignal | undefined
}

/**
 * Handles several messages at once. If it returns, all are acknowledged; if it throws, all are retried, or treated as `retryAfter`, `park`,
 * `defer` or `undecodable` says.
 *
 * It may also return an array with one answer for each message, in their order: an error for one that failed, or what `retryAfter`, `park`,
 * `defer` or `undecodable` makes; any other value is a success, but for work that nobody does, such as a function. The result of
 * `Promise.allSettled` is such an array. All have failed if its length is another one, if another iterable is returned, or if answers are
 * returned after the order of `messages` was changed.
 */
export type BatchHandler<Body = unknown> = (messages: Message<Body>[], context: Context) => unknown

/** The options of a consumer whose handler gets several messages at once. */
export interface BatchOptions extends Omit<ConsumerOptions, 'batch' | 'batchWait' | 'middleware'> {
  /**
   * How many messages a handler gets at once at most: 1 to 10 000. `concurrency` then counts batches, and the default `prefetch` is
   * `batch` × `concurrency` if that is more. Each message keeps its own attempts, retries and end.
   */
  batch: number
  /**
   * How long an incomplete batch waits for more messages, from its first one on: 200 ms by default, at most one minute. With 0 a handler gets
   * what is there.
   */
  batchWait?: Duration | undefined
  /** Middleware is around single messages. */
  middleware?: undefined
}

/** A consumer that is not running yet: all that is known before there is a connection. @internal */
export interface Plan {
  queue: string
  native: Options
  fatal: readonly ErrorClass[]
  onEvent: ((event: Event) => void) | undefined
  keepAlive: boolean
  signal: AbortSignal | undefined
  handler: Handler | BatchHandler
}

function whole(option: string, value: unknown, least: number, most: number): number {
  if (typeof value !== 'number') throw new InvalidTypeError(`\`${option}\` must be a number, not ${kind(value)}`)
  if (!Number.isInteger(value) || value < least || value > most) {
    throw new InvalidOptionError(`\`${option}\` must be a whole number between ${least} and ${most}, not ${value}`)
  }
  return value
}

/**
 * Throws for unknown options. Inherited properties are not checked: an option may be inherited, and is read by its name.
 *
 * @internal
 */
export function onlyKnown(options: object, known: readonly string[]): void {
  const unknown = Object.keys(options).find((name) => !known.includes(name))
  if (unknown === undefined) return
  throw new InvalidTypeError(`there is no option \`${unknown}\`; ${choices(unknown, known)}`)
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

/** An abort signal of any realm. @internal */
export function abortSignal(value: unknown): AbortSignal {
  const signal = value as AbortSignal
  if (typeof value !== 'object' || value === null || typeof signal.addEventListener !== 'function') {
    const what = typeof value === 'object' && value !== null ? 'an object without `addEventListener`' : kind(value)
    throw new InvalidTypeError(`\`signal\` must be an AbortSignal, not ${what}`)
  }
  return signal
}

/** The result, unless the signal aborts first. @internal */
export function unlessAborted<T>(making: Promise<T>, signal: AbortSignal, giveUp: () => void = () => {}): Promise<T> {
  return new Promise((resolve, reject) => {
    const abort = (): void => {
      reject(signal.reason as Error)
      giveUp()
    }
    signal.addEventListener('abort', abort, { once: true })
    // First, because the caller may abort as soon as it has the result.
    const deaf = (): void => signal.removeEventListener('abort', abort)
    making.then(
      (made) => (deaf(), resolve(made)),
      (error: Error) => (deaf(), reject(error)),
    )
  })
}

function policy(value: unknown): string {
  if (value instanceof Policy) return value.text
  if (typeof value === 'string') return callNative(() => native.readPolicy(value), 'retry').text
  throw new InvalidTypeError(`\`retry\` must be a policy or a string such as 'fixed(5s, retries=3)', not ${kind(value)}`)
}

function rules(value: unknown): (RuleInput | string)[] {
  if (!Array.isArray(value)) throw new InvalidTypeError(`\`rules\` must be an array of rules or strings, not ${kind(value)}`)
  // Not with its own `map`, which skips holes.
  return Array.from(value as unknown[], (rule) => {
    if (rule instanceof Rule) return inputOf(rule)
    if (typeof rule === 'string') return rule
    throw new InvalidTypeError(`\`rules\` must hold rules or strings, not ${kind(rule)}`)
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
  // The core has the defaults.
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

/** The text form, the same in every language: a word, or the arguments as JSON. A bigint is a number there. */
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

/** Half of a surrogate pair, in a string of UTF-16. */
const HALF = /\p{Surrogate}/u

/** Checks that all strings can be sent as UTF-8; a lone surrogate cannot. Throws with the name of the option. */
function paired(option: string, value: unknown): void {
  const look = (one: unknown): void => {
    if (typeof one === 'string') {
      if (HALF.test(one)) throw new InvalidOptionError(`\`${option}\` holds a lone surrogate, which UTF-8 cannot encode`)
    } else if (Array.isArray(one) || isPlain(one)) {
      Object.entries(one).forEach((entry) => entry.forEach(look))
    }
  }
  look(value)
}

/** In the core's unit. */
function seconds(value: unknown, option: string): number {
  return milliseconds(value as Duration, option) / 1000
}

/** The core's name of an option. */
function inCore(option: string): string {
  return option.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
}

/** What the core gets for each option. An undefined option has the core's default. */
const READ = {
  queue: (value: unknown) => string('queue', value),
  dlx: (value: unknown) => flag('dlx', value),
  retry: policy,
  strategy: (value: unknown) => string('strategy', value),
  rules,
  prefetch: (value: unknown) => whole('prefetch', value, 1, 65_535),
  prefetchBytes: (value: unknown) => whole('prefetchBytes', value, 1, Number.MAX_SAFE_INTEGER),
  priority: (value: unknown) => whole('priority', value, -(2 ** 31), 2 ** 31 - 1),
  concurrency: (value: unknown) => whole('concurrency', value, 1, 100_000),
  batch: (value: unknown) => whole('batch', value, 1, 10_000),
  batchWait: (value: unknown) => seconds(value, 'batchWait'),
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
const KNOWN = [...NATIVE, 'onEvent', 'fatal', 'middleware', 'keepAlive', 'signal']

/**
 * Checks all options; throws naming the one that cannot work. `outer` is around the middleware of the options; a handler of batches has none.
 *
 * @internal
 */
export function plan(
  options: ConsumerOptions | BatchOptions,
  handler: Handler | BatchHandler,
  outer: readonly Middleware[] = [],
): Plan {
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
    if (value === undefined) continue
    if (typeof value === 'string') paired(name, value)
    const read = READ[name](value)
    // An object is looked at when it is known to be flat.
    paired(name, [value, read])
    input[inCore(name)] = read
  }
  const { onEvent, signal } = options
  const middleware = functions('middleware', options.middleware)
  const isBatch = options.batch !== undefined
  if (isBatch && middleware.length > 0) {
    throw new InvalidOptionError('`middleware` is around single messages, and does not go together with `batch`')
  }
  const classes = options.fatal === undefined ? [] : fatal(options.fatal)
  if (classes.length > 0) input['fatal'] = true
  if (onEvent !== undefined && typeof onEvent !== 'function') {
    throw new InvalidTypeError(`\`onEvent\` must be a function, not ${kind(onEvent)}`)
  }
  return {
    queue: options.queue,
    native: callNative(() => new native.Options(JSON.stringify(input))),
    fatal: classes,
    onEvent,
    keepAlive: options.keepAlive === undefined ? true : flag('keepAlive', options.keepAlive),
    signal: signal === undefined ? undefined : abortSignal(signal),
    handler: isBatch ? withOwnArray(handler as BatchHandler) : withMiddleware([...outer, ...middleware], handler as Handler),
  }
}
