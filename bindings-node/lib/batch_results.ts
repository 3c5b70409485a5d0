/** What the handler of a batch returned: how each of its messages ends. */

import { types } from 'node:util'

import type { Message } from './message.js'
import type { BatchHandler } from './options.js'
import { isErrorLike, isSignal, isThenable, peek } from './outcome.js'
import { unfinishedWork } from './result_check.js'

/** The handler of a batch returned something from which nobody knows which answer is for which message. */
class BatchAnswerError extends Error {
  override get name(): string {
    return 'BatchAnswerError'
  }
}

const HOW_TO_ANSWER = 'return an array with one answer for each message, in their order'

/** A failure. What was thrown may be `undefined`. */
interface Failure {
  error: unknown
}

/** What failed according to what a handler of a batch returned: `all`, or `each` by itself; `undefined` if nothing did. @internal */
export type BatchResults = { all: Failure } | { each: (Failure | undefined)[] } | undefined

/** Reads what a handler returned for this number of messages. @internal */
export function batchResults(value: unknown, count: number): BatchResults {
  if (typeof value !== 'object' && typeof value !== 'function') return undefined
  try {
    const error = isSignal(value) ? value : (unfinishedWork(value, count) ?? misreadError(value, count))
    if (error !== undefined) return { all: { error } }
    if (!Array.isArray(value)) return undefined
    // Not with its own methods, which skip holes.
    const answers = Array.from(value as unknown[])
    const areSettled = answers.every((answer) => isSettled(answer) || answer === undefined || isSignal(answer) || isErrorLike(answer))
    const each = answers.map((answer) => failure(answer, areSettled))
    return each.some((one) => one !== undefined) ? { each } : undefined
  } catch (error) {
    return { all: { error } } // a proxy or a getter that throws
  }
}

/**
 * A handler that gets an array of its own, which it may change. An answer for each message belongs to the original order, so there is none if
 * it changed the array. @internal
 */
export function withOwnArray(handler: BatchHandler): BatchHandler {
  return (messages, context) => {
    const own = [...messages]
    const checked = (value: unknown): unknown => {
      if (Array.isArray(value) && !isSame(own, messages)) {
        throw new BatchAnswerError(`the handler changed the array of messages, so its answers have no order; sort a copy, and ${HOW_TO_ANSWER}`)
      }
      return value
    }
    const returned = handler(own, context)
    return isThenable(returned) ? Promise.resolve(returned).then(checked) : checked(returned)
  }
}

function isSame(one: readonly Message[], other: readonly Message[]): boolean {
  return one.length === other.length && one.every((message, at) => message === other[at])
}

/** Why a returned object has no answers although it holds several values. */
function misreadError(value: unknown, count: number): BatchAnswerError | undefined {
  if (Array.isArray(value)) {
    if (value.length === count) return undefined
    return new BatchAnswerError(`the handler answered ${value.length} of ${count} messages; return one answer for each, in their order`)
  }
  if (typeof value !== 'object' || value === null) return undefined
  const isMany = ArrayBuffer.isView(value) || types.isAnyArrayBuffer(value) || Symbol.iterator in value || Symbol.asyncIterator in value
  if (!isMany) return undefined
  return new BatchAnswerError(`the handler returned values that are not in an array; ${HOW_TO_ANSWER}`)
}

/**
 * An error, a signal, or work that nobody does, also as `Promise.allSettled` writes it. Any other answer is a success, as it is for a single
 * message.
 */
function failure(answer: unknown, areSettled: boolean): Failure | undefined {
  if (isSignal(answer) || isErrorLike(answer)) return { error: answer }
  if (!isSettled(answer)) return unfinishedError(answer)
  // Beside other values only an error tells that this is no value of the application.
  const isSure = answer.status === 'rejected' && (isErrorLike(answer.reason) || isSignal(answer.reason))
  if (!areSettled && !isSure) return unfinishedError(answer)
  if (answer.status === 'rejected') return { error: answer.reason }
  return isSignal(answer.value) ? { error: answer.value } : unfinishedError(answer.value)
}

function unfinishedError(answer: unknown): Failure | undefined {
  const error = unfinishedWork(answer)
  if (error !== undefined) return { error }
  // Within what `Promise.allSettled` returned, for example.
  return isThenable(answer) ? { error: new TypeError('an answer of the handler is a promise, which nobody awaits') } : undefined
}

/** Whether an answer has exactly the shape of a result of `Promise.allSettled`. A value of the application may have a `status`, too. */
function isSettled(answer: unknown): answer is PromiseSettledResult<unknown> {
  if (typeof answer !== 'object' || answer === null) return false
  const status = peek(answer, 'status')
  if (status !== 'fulfilled' && status !== 'rejected') return false
  const keys = Reflect.ownKeys(answer)
  return keys.length === 2 && keys.includes('status') && keys.includes(status === 'rejected' ? 'reason' : 'value')
}
