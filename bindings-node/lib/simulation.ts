/** Handlers on the core's simulation of a queue. */

import { types } from 'node:util'

import { batchResults } from './batch_results.js'
import { InvalidOptionError, InvalidTypeError, callNative, kind } from './errors.js'
import type { ParkReason } from './events.js'
import { MARK, type Message, messages, tokenOf, unmark } from './message.js'
import { type Simulation, native } from './native.js'
import { type BatchHandler, type BatchOptions, type ConsumerOptions, type Context, type Handler, type Plan, plan } from './options.js'
import { type End, classify, failureOf, isSignal, timeoutEnd, writeEnd } from './outcome.js'
import { type Body, type PublishOptions, outgoing } from './publish.js'
import { timer } from './duration.js'
import { unfinishedWork } from './result_check.js'
import { clearTimeout, now } from './timers.js'
import { isPlain } from './values.js'
import { Writer } from './byte_writer.js'

/** A body, or an object with a body and other arguments of `publish`. */
export type Input = Body | ({ body: Body; routingKey?: string } & PublishOptions)

/** What can happen to a message after an attempt. */
export type Became = 'acked' | 'retried' | 'deferred' | 'parked' | 'dropped' | 'rejected'

/** One call of the handler. */
export interface Attempt {
  /** The index of the message; 0 is the first. */
  readonly index: number
  /** The message, as the handler got it. */
  readonly message: Message
  /** When the attempt began, on the virtual clock, in milliseconds. */
  readonly at: number
  /** The number of the attempt; 1 is the first delivery. A deferral uses up none. */
  readonly number: number
  /** What happened to the message. */
  readonly became: Became
  /** What the handler threw, if it threw. */
  readonly error: unknown
  /** How long the message waits then, in milliseconds; `undefined` if it does not wait. */
  readonly delay: number | undefined
}

/** How a message ended. */
export interface Ended {
  /** The index of the message; 0 is the first. */
  readonly index: number
  /** `acked`, `parked`, `dropped` or `rejected`. */
  readonly became: Became
  /** When, on the virtual clock, in milliseconds. */
  readonly at: number
  /** Why it was parked or dropped. */
  readonly reason: ParkReason | undefined
  /** The parked message, with its record. */
  readonly message: Message | undefined
}

/** The result: every attempt in order, and how each message ended. */
export interface Simulated {
  readonly attempts: readonly Attempt[]
  /** In the order of the messages. */
  readonly ends: readonly Ended[]
  /** The messages that were handled. */
  readonly acked: readonly Ended[]
  /** The messages that were parked. */
  readonly parked: readonly Ended[]
  /** How long all of it took, on the virtual clock, in milliseconds. */
  readonly elapsed: number
  /** The attempts at the message with this index. */
  attemptsOf(index: number): readonly Attempt[]
}

/** The most attempts: a handler that defers its messages again and again would never end. */
const MOST = 100_000

/**
 * Runs `handler` on messages as a consumer with these options would, one at a time, until every message has ended.
 *
 * Waiting takes no time: the clock jumps to the next arrival. Only the broker is simulated: whatever the handler awaits or calls is
 * real, and so is `handlerTimeout`. Throws at once for options and messages that cannot work. What only a broker can tell (missing
 * queues, permissions, routes, crashes) is not checked. `concurrency`, `prefetch`, `pause` and `drainTimeout` have no effect, and
 * `onEvent` is not called.
 */
export function simulate<Body = unknown>(
  options: ConsumerOptions,
  handler: Handler<Body>,
  inputs: Iterable<Input>,
): Promise<Simulated>
/** Runs a handler of batches, as {@link simulate} does, with one message at a time. */
export function simulate<Body = unknown>(
  options: BatchOptions,
  handler: BatchHandler<Body>,
  inputs: Iterable<Input>,
): Promise<Simulated>
export function simulate(
  options: ConsumerOptions | BatchOptions,
  handler: Handler | BatchHandler,
  inputs: Iterable<Input>,
): Promise<Simulated> {
  return simulatePlanned(plan(options, handler), inputs)
}

/** Runs the handler of a consumer whose options are checked. @internal */
export function simulatePlanned(planned: Plan, inputs: Iterable<Input>): Promise<Simulated> {
  if (typeof inputs !== 'object' || inputs === null || typeof inputs[Symbol.iterator] !== 'function') {
    throw new InvalidTypeError(`the messages of a simulation must be in an array, not ${kind(inputs)}`)
  }
  const simulation = callNative(() => new native.Simulation(planned.native))
  let count = 0
  for (const input of inputs) {
    const message = published(planned.queue, input, count++)
    callNative(() => simulation.publish(message))
  }
  return run(planned, simulation)
}

async function run(planned: Plan, simulation: Simulation): Promise<Simulated> {
  const attempts: Attempt[] = []
  const ends = new Map<number, Ended>()
  for (let batch = simulation.next(); batch !== null; batch = simulation.next()) {
    const message = messages(planned.queue, batch)[0] as Message
    const index = unmark(message)
    const at = simulation.elapsed
    const { error, end } = await runAttempt(planned, message)
    const out = new Writer()
    writeEnd(out, tokenOf(message), end)
    const { what, delay, reason, parked } = callNative(() => simulation.settle(out.done()))
    const became = what as Became
    attempts.push({ index, message, at, number: message.attempt, became, error, delay })
    if (delay === undefined) {
      const record = parked === undefined ? undefined : (messages(planned.queue, parked)[0] as Message)
      if (record !== undefined) unmark(record)
      ends.set(index, { index, became, at, reason: reason as ParkReason | undefined, message: record })
    }
    if (attempts.length > MOST) {
      throw new Error(`the simulation of ${planned.queue} does not end: ${MOST} attempts were made`)
    }
  }
  const inOrder = [...ends.values()].sort((one, other) => one.index - other.index)
  return {
    attempts,
    ends: inOrder,
    acked: inOrder.filter((end) => end.became === 'acked'),
    parked: inOrder.filter((end) => end.became === 'parked'),
    elapsed: simulation.elapsed,
    attemptsOf: (index) => attempts.filter((attempt) => attempt.index === index),
  }
}

function published(queue: string, input: Input, index: number): Buffer {
  const isBody = typeof input === 'string' || ArrayBuffer.isView(input) || types.isAnyArrayBuffer(input)
  if (!isBody && (typeof input !== 'object' || input === null || !('body' in input))) {
    throw new InvalidOptionError(`a simulated message is a body or an object with \`body\`, not ${kind(input)}`)
  }
  const { body, routingKey = queue, ...options } = isBody ? { body: input } : input
  const { headers = {} } = options
  // If it is not an object of headers, it goes on unchanged, and is refused by its name.
  const marked = isPlain(headers) ? { ...headers, [MARK]: index } : headers
  return outgoing(routingKey, body, { ...options, headers: marked })
}

/** What the handler threw, and how the attempt ended; both `undefined` if it was handled. */
interface AttemptEnd {
  error: unknown
  end: End | undefined
}

/** Runs the handler, up to its timeout. */
async function runAttempt(planned: Plan, message: Message): Promise<AttemptEnd> {
  const limit = planned.native.handlerTimeout
  const controller = new AbortController()
  let limiting: NodeJS.Timeout | undefined
  const began = now()
  const timedOutAttempt = (limit: number): AttemptEnd => {
    const { end, reason } = timeoutEnd(limit)
    return { error: reason, end }
  }
  const late = new Promise<AttemptEnd>((resolve) => {
    if (limit === null) return
    limiting = timer(limit, () => {
      const ended = timedOutAttempt(limit)
      resolve(ended)
      controller.abort(ended.error)
    })
  })
  try {
    const ended = await Promise.race([runHandler(planned, message, { signal: controller.signal }), late])
    // A handler that blocks the event loop keeps the timer waiting, too.
    const isLate = limit !== null && !controller.signal.aborted && now() - began >= limit
    return isLate ? timedOutAttempt(limit) : ended
  } finally {
    clearTimeout(limiting)
  }
}

async function runHandler(planned: Plan, message: Message, context: Context): Promise<AttemptEnd> {
  const failed = (error: unknown): AttemptEnd => {
    const end = classify(error, planned.fatal, { kinds: true, stack: true })
    return { error: failureOf(error), end }
  }
  try {
    if (planned.native.batch !== null) {
      const answer = batchResults(await (planned.handler as BatchHandler)([message], context), 1)
      const failure = answer !== undefined && 'all' in answer ? answer.all : answer?.each[0]
      return failure === undefined ? { error: undefined, end: undefined } : failed(failure.error)
    }
    const value: unknown = await (planned.handler as Handler)(message, context)
    const error = isSignal(value) ? value : unfinishedWork(value)
    return error === undefined ? { error: undefined, end: undefined } : failed(error)
  } catch (error) {
    return failed(error)
  }
}

/** The number of living native objects of this process, by kind. For tests of leaks. */
export function liveObjects(): { [kind: string]: number } {
  return Object.fromEntries(native.liveObjects())
}
