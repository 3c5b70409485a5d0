/** Functions around every attempt, and around every publish. */

import { types } from 'node:util'

import { InvalidTypeError, kind } from './errors.js'
import type { Message } from './message.js'
import type { Context, Handler } from './options.js'
import { isSignal } from './outcome.js'
import type { Body, PublishOptions } from './publish.js'
import { unfinishedWork } from './result_check.js'
import type { HeaderInput } from './values.js'

/**
 * Runs the rest: the middleware behind this one, and in the end the handler. Resolves with what the handler returned, and rejects with what
 * it threw. Takes nothing, or the message itself.
 */
export type Next = (message?: Message) => Promise<unknown>

/**
 * Runs around every attempt of a handler, in its asynchronous context and within its `handlerTimeout`.
 *
 *     const timed: Middleware = async (msg, next) => {
 *       const began = performance.now()
 *       try {
 *         await next()
 *       } finally {
 *         histogram.record(performance.now() - began, { queue: msg.queue })
 *       }
 *     }
 *
 * The attempt ends as the outermost middleware ends. If it returns, the message is acknowledged, also if it did not call `next` or has caught
 * the error of the handler. If it throws, the message is retried, or treated as `retryAfter`, `park`, `defer` or `undecodable` says. If it
 * returns while the handler is still running, or did not wait for `next` and so missed its error, the attempt has failed. It may call `next`
 * again; then the handler runs once more in the same attempt.
 */
export type Middleware = (message: Message, next: Next, context: Context) => unknown

/** A message on its way to the broker, as a publish middleware gets it: the arguments of `publish`, in one object. */
export interface Publish extends Omit<PublishOptions, 'exchange' | 'headers'> {
  /** The exchange; empty for the default exchange. */
  readonly exchange: string
  /** The routing key: with the default exchange the name of a queue. */
  readonly routingKey: string
  /** The body, as it was given. */
  readonly body: Body
  /** The headers, as an object of their own, to which a middleware may add. */
  headers: { [name: string]: HeaderInput }
}

/**
 * Sends the message: runs the middleware behind this one, and in the end publishes. Resolves when the broker has confirmed it. Takes nothing,
 * or the object itself.
 */
export type PublishNext = (publish?: Publish) => Promise<void>

/**
 * Runs around every `publish` of a client. It may change the headers and the properties of the message.
 *
 *     const traced: PublishMiddleware = (publish, next) => {
 *       publish.headers['x-request-id'] = requests.getStore()
 *       return next()
 *     }
 *
 * `publish` ends as the outermost middleware ends. If it does not call `next`, nothing is sent, and `publish` resolves. If it did not wait for
 * `next`, and that failed, `publish` rejects with its error. What it returns is ignored.
 */
export type PublishMiddleware = (publish: Publish, next: PublishNext) => unknown

/** A list of functions, as an option. Throws with its name. @internal */
export function functions<F>(option: string, value: readonly F[] | undefined): readonly F[] {
  if (value === undefined) return []
  if (!Array.isArray(value)) throw new InvalidTypeError(`\`${option}\` must be an array of functions, not ${kind(value)}`)
  // Not with its own `map`, which skips holes.
  return Array.from(value as unknown[], (one) => {
    if (typeof one !== 'function') throw new InvalidTypeError(`\`${option}\` must hold functions, not ${kind(one)}`)
    if (types.isGeneratorFunction(one)) {
      throw new InvalidTypeError(`\`${option}\` holds a generator function, which nobody would run; write it without \`*\``)
    }
    return one as F
  })
}

/** What runs within the middleware of one attempt or publish, and failures of it that nobody has heard of. */
class MiddlewareRun {
  running = 0
  readonly unhandled = new Map<ObservedPromise, unknown>()
}

/**
 * What `next` returns. Whoever waits for a promise calls its `then`, also by `await`, `return`, `catch`, `finally` and `Promise.all`. What
 * `then` returns is watched in the same way, because it passes failures on.
 */
class ObservedPromise extends Promise<unknown> {
  #run: MiddlewareRun | undefined
  #isObserved = false

  // `then` would call the constructor otherwise; and `await` calls `then` only if this is not a plain promise.
  static override get [Symbol.species](): PromiseConstructor {
    return Promise
  }

  static of(promise: Promise<unknown>, run: MiddlewareRun, done: () => void = () => {}): ObservedPromise {
    const result: ObservedPromise = new ObservedPromise((resolve, reject) => {
      promise.then(
        (value) => {
          done()
          resolve(value)
        },
        (error: unknown) => {
          done()
          if (!result.#isObserved) run.unhandled.set(result, error)
          reject(error as Error) // unhandled, if nobody awaits it: it is not hidden here
        },
      )
    })
    result.#run = run
    return result
  }

  override then<A = unknown, B = never>(
    fulfilled?: ((value: unknown) => A | PromiseLike<A>) | null,
    rejected?: ((error: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    const then = super.then(fulfilled, rejected)
    if (this.#run === undefined) return then
    this.#isObserved = true
    this.#run.unhandled.delete(this)
    return ObservedPromise.of(then, this.#run) as Promise<A | B>
  }
}

/**
 * Calls the functions around each other, the first as the outermost, and `last` within them. It begins at once, so that what was called in
 * some order begins in that order.
 */
async function runNested<F, T>(
  all: readonly F[],
  call: (one: F, next: (given?: T) => Promise<unknown>) => unknown,
  last: () => unknown,
  given: T,
): Promise<unknown> {
  const run = new MiddlewareRun()
  const runFrom = async (at: number, other: T | undefined): Promise<unknown> => {
    if (other !== undefined && other !== given) {
      throw new InvalidTypeError(`\`next\` takes nothing, or the object that the middleware was called with, not ${kind(other)}`)
    }
    const one = all[at]
    if (one === undefined) return last()
    return call(one, (other) => {
      run.running++
      return ObservedPromise.of(runFrom(at + 1, other), run, () => run.running--)
    })
  }
  const value = await runFrom(0, undefined)
  if (run.running > 0) throw new Error('a middleware returned before `next` was done; write `await next()` or `return next()`')
  for (const error of run.unhandled.values()) throw error
  return value
}

const OUTERMOST = Symbol('outermost')

/** A handler that brings a middleware along, which is around all others, also those of the client. @internal */
export function outermost(middleware: Middleware, handler: Handler): Handler {
  return Object.assign(handler, { [OUTERMOST]: middleware })
}

/** The handler within its middleware; the handler itself if there is none. @internal */
export function withMiddleware(given: readonly Middleware[], handler: Handler & { readonly [OUTERMOST]?: Middleware }): Handler {
  const all = handler[OUTERMOST] === undefined ? given : [handler[OUTERMOST], ...given]
  if (all.length === 0) return handler
  return (message, context) => {
    const handle = async (): Promise<unknown> => {
      const value: unknown = await handler(message, context)
      // A middleware need not return what `next` resolves with, and must not hide that the handler has failed.
      const failure = isSignal(value) ? value : unfinishedWork(value)
      if (failure !== undefined) throw failure
      return value
    }
    return runNested(all, (one, next) => one(message, next, context), handle, message)
  }
}

/** A message for the middleware of a client. */
function publishArgument(routingKey: string, body: Body, options: PublishOptions): Publish {
  const { exchange = '', headers = {}, ...properties } = options
  const fixed = { exchange, routingKey, body }
  const publish = { ...properties, headers: { ...headers } }
  for (const [name, value] of Object.entries(fixed)) Object.defineProperty(publish, name, { value, enumerable: true })
  return publish as unknown as Publish
}

/** Publishes within the middleware of a client. @internal */
export async function publishThroughMiddleware(
  all: readonly PublishMiddleware[],
  send: (options: PublishOptions) => Promise<void>,
  routingKey: string,
  body: Body,
  options: PublishOptions,
): Promise<void> {
  const publish = publishArgument(routingKey, body, options)
  const last = (): Promise<void> => {
    const { routingKey: _, body: __, headers, ...options } = publish
    return send(Object.keys(headers).length === 0 ? options : { ...options, headers })
  }
  await runNested(all, (one, next) => one(publish, next as PublishNext), last, publish)
}
