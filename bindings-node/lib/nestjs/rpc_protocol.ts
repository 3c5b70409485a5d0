/** Messages as Nest's clients write them, and the replies that they understand. */

import { HttpException } from '@nestjs/common'
import { RpcException } from '@nestjs/microservices'

import type { Message } from '../message.js'
import { failureOf, isSignal, undecodable } from '../outcome.js'
import { parsedBody } from '../typed_bodies.js'
import { isPlain } from '../values.js'
import type { RetryRmqContext } from './context.js'
import type { Consuming, Pattern } from './options.js'

/** A message as it was read. @internal */
export interface RpcMessage {
  /** The key of its pattern, see {@link patternKey}. */
  pattern: string
  data: unknown
  /** Where a reply goes; `undefined` if nobody waits for one. */
  replyTo: string | undefined
}

/** Of an envelope, which has no other keys. */
const ENVELOPE_KEYS = ['pattern', 'data', 'id']

/** Reads a message: `{ pattern, data }` as `ClientRMQ` writes it, with an `id` if it is a request; or plain. @internal */
export function readRpcMessage(message: Message, decode: Consuming['decode']): RpcMessage {
  const value = decode === undefined ? parsedBody(message, undecodable) : decoded(message, decode)
  const isEnvelope = isPlain(value) && 'pattern' in value && 'data' in value && Object.keys(value).every((key) => ENVELOPE_KEYS.includes(key))
  if (!isEnvelope) return { pattern: message.routingKey, data: value, replyTo: undefined }
  const { pattern, data, id } = value as { pattern: Pattern; data: unknown; id?: unknown }
  return { pattern: patternKey(pattern), data, replyTo: id === undefined ? undefined : message.properties.replyTo }
}

function decoded(message: Message, decode: NonNullable<Consuming['decode']>): unknown {
  try {
    return decode(message)
  } catch (error) {
    throw undecodable(error)
  }
}

/** A pattern as text: objects with the same fields, in any order, are the same pattern. @internal */
export function patternKey(pattern: unknown): string {
  if (typeof pattern === 'string') return pattern
  const sorted = (_: string, value: unknown): unknown =>
    isPlain(value) ? Object.fromEntries(Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1))) : value
  return String(JSON.stringify(pattern, sorted))
}

/** Statuses of a client's error that may go away by themselves: request timeout, conflict, locked, too early, too many requests. */
const TEMPORARY_STATUSES = [408, 409, 423, 425, 429]

/**
 * Which errors no retry can fix, by default: an `HttpException` with a status of 400 to 499 that does not go away by itself (such as a
 * `BadRequestException` of `ValidationPipe`, or the `ForbiddenException` of a guard), and an `RpcException` if somebody waits for the reply.
 * Everything else is retried.
 */
export function isFatal(error: unknown, context: RetryRmqContext): boolean {
  if (error instanceof RpcException) return context.isRequest
  if (!(error instanceof HttpException)) return false
  const status = error.getStatus()
  return status >= 400 && status < 500 && !TEMPORARY_STATUSES.includes(status)
}

/** Has an exception of `ValidationPipe` say what is wrong, for the record of its message: it is only in its response. @internal */
export function addValidationMessages(error: unknown): void {
  if (!(error instanceof HttpException)) return
  const { message } = Object(error.getResponse()) as { message?: unknown }
  if (Array.isArray(message) && message.length > 0) error.message = message.map(String).join('; ')
}

/** The reply to a request that succeeded. @internal */
export function successReply(value: unknown): string {
  return JSON.stringify({ response: value, isDisposed: true })
}

/**
 * The reply to a request that failed for good. As in Nest, other errors than its exceptions are not shown to the requester, and a filter may
 * choose what is.
 *
 * @internal
 */
export function errorReply(error: unknown, refused: RetryRmqContext['refused']): string {
  const failure = failureOf(error)
  const err = refused !== undefined && refused.exception === failure ? refused.shown : shownError(failure)
  try {
    return JSON.stringify({ err, isDisposed: true })
  } catch {
    return JSON.stringify({ err: INTERNAL, isDisposed: true })
  }
}

const INTERNAL = { status: 'error', message: 'Internal server error' }

function shownError(error: unknown): unknown {
  const status = 'error'
  if (isSignal(error) && error.cause !== undefined) return shownError(error.cause)
  if (error instanceof RpcException) {
    const given = error.getError()
    return typeof given === 'object' ? given : { status, message: given }
  }
  if (error instanceof HttpException) return { status, message: error.message }
  return INTERNAL
}
