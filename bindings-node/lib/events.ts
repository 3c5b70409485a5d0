/** Events: what happened to a message or a consumer, as typed values. */

import { InvalidTypeError } from './errors.js'

/** Why a message was parked. */
export type ParkReason =
  | 'exhausted'
  | 'fatal'
  | 'requested'
  | 'delivery-limit'
  | 'undecodable'
  | 'expired'
  | 'too-old'
  | 'rejected'
  | 'overflow'

interface About<Name extends string> {
  /** The event's name, the same in every language. */
  readonly name: Name
  /** The work queue. */
  readonly queue: string
}

interface AboutMessage<Name extends string> extends About<Name> {
  /** The message's id, if its publisher gave it one. */
  readonly messageId: string | undefined
}

/** A failed message waits for its next attempt. Its copy is confirmed, its original acknowledged. */
export interface Retried extends AboutMessage<'retried'> {
  /** The attempt that failed; 1 is the first delivery. */
  readonly attempt: number
  /** How long it waits, in milliseconds. */
  readonly delay: number
  /** The error of this attempt, at most 1024 bytes. */
  readonly error: string
  /** The type of that error, if it is known: `TypeError`. */
  readonly errorType: string | undefined
}

/** A handler deferred a message. */
export interface Deferred extends AboutMessage<'deferred'> {
  /** How long it waits, in milliseconds. */
  readonly delay: number
}

/** A message was parked. */
export interface Parked extends AboutMessage<'parked'> {
  /** The number of the last attempt. */
  readonly attempt: number
  /** Why it was parked. */
  readonly reason: ParkReason
  /** The error of the last failure, at most 1024 bytes. */
  readonly error: string
  /** The type of that error, if it is known: `TypeError`. */
  readonly errorType: string | undefined
}

/** With the strategy `service`: a failed message was handed over to the service, whose policy decides. Its original is acknowledged. */
export interface HandedOver extends AboutMessage<'handed_over'> {
  /** The attempt that failed; 1 is the first delivery. */
  readonly attempt: number
  /** The error of this attempt, at most 1024 bytes. */
  readonly error: string
  /** The type of that error, if it is known: `TypeError`. */
  readonly errorType: string | undefined
}

/** Without `dlx`: a failed message was rejected without requeue. The queue's own dead-lettering decides. */
export interface Rejected extends AboutMessage<'rejected'> {
  /** The error of this attempt, at most 1024 bytes. */
  readonly error: string
  /** The type of that error, if it is known: `TypeError`. */
  readonly errorType: string | undefined
}

/** A message was redelivered because its consumer never settled it, or, with `native`, before its delay was over. A copy waits before the next attempt. */
export interface Detoured extends AboutMessage<'detoured'> {
  /** Its crashes so far. */
  readonly crashes: number
}

/** A message that was handled before the connection was lost was redelivered. It was acknowledged, not handled again. */
export type AlreadyHandled = AboutMessage<'already_handled'>

/** A message that was replayed from the parking queue arrived, and will be handled again. */
export type Replayed = AboutMessage<'replayed'>

/** A copy could not be stored. It is tried again; the original is still unacknowledged. */
export interface PublishFailed extends AboutMessage<'publish_failed'> {
  /** Why it could not be stored. */
  readonly error: string
}

/**
 * A message that did not run, or whose copy could not be stored for ten minutes, went back to the tail of its queue as a copy. A requeue by
 * AMQP `basic.nack` has no event.
 */
export type Requeued = AboutMessage<'requeued'>

/** The connection or the channel was lost. Unacknowledged messages are delivered again. */
export type Disconnected = About<'disconnected'>

/**
 * The connection was lost, and the broker now refuses the login or the virtual host. The client keeps trying. Fix the user, the password
 * or the virtual host.
 */
export interface LoginRefused extends About<'login_refused'> {
  /** What the broker refused. */
  readonly error: string
}

/**
 * The consumer moved messages of its queue to `<queue>.unreadable`: RabbitMQ cannot deliver them over AMQP 0-9-1, and closed the connection
 * instead. Their publishers should send other types. Sent once for each look at the queue that moved some.
 */
export interface UnreadableMoved extends About<'unreadable_moved'> {
  /** The queue to which they were moved. */
  readonly to: string
  /** How many were moved. */
  readonly count: number
  /** Why the first of them cannot be delivered. */
  readonly cause: string
}

/**
 * RabbitMQ closed one or more connections of the consumer with an error of its own, as it does for a message that it cannot deliver, and no such
 * message could be moved. The consumer does not consume until the cause is gone. It looks a few times more, and may have to be started again.
 * Sent once for each stop; `reconnected` follows when it consumes again.
 */
export interface ConsumingStopped extends About<'consuming_stopped'> {
  /** Why it does not consume, and what to do. */
  readonly error: string
}

/** The consumer consumes again after a loss. */
export type Reconnected = About<'reconnected'>

/** Too many attempts failed, so the consumer takes no messages for a while. */
export interface Paused extends About<'paused'> {
  /** How long the pause lasts, in milliseconds. */
  readonly delay: number
}

/** The probe message succeeded, so the consumer takes messages again. */
export type Resumed = About<'resumed'>

/** Every event. */
export type Event =
  | Retried
  | Deferred
  | Parked
  | HandedOver
  | Rejected
  | Detoured
  | AlreadyHandled
  | Replayed
  | PublishFailed
  | Requeued
  | Disconnected
  | LoginRefused
  | UnreadableMoved
  | ConsumingStopped
  | Reconnected
  | Paused
  | Resumed

/** The events by name, with the arguments of their listeners. */
export type Events = { [Name in Event['name']]: [event: Extract<Event, { name: Name }>] }

const NAMES: { readonly [Name in Event['name']]: true } = {
  retried: true,
  deferred: true,
  parked: true,
  handed_over: true,
  rejected: true,
  detoured: true,
  already_handled: true,
  replayed: true,
  publish_failed: true,
  requeued: true,
  disconnected: true,
  login_refused: true,
  unreadable_moved: true,
  consuming_stopped: true,
  reconnected: true,
  paused: true,
  resumed: true,
}
/** Events of every emitter; `once` of `node:events` listens for errors. */
const EVERY = ['error', 'newListener', 'removeListener']

/** Throws for an unknown event. @internal */
export function known(name: unknown): void {
  if (typeof name === 'symbol' || EVERY.includes(name as string) || Object.hasOwn(NAMES, name as string)) return
  throw new InvalidTypeError(`there is no event \`${String(name)}\`; the events are ${Object.keys(NAMES).join(', ')}`)
}

const ABOUT_CONSUMERS = new Set([
  'disconnected',
  'login_refused',
  'unreadable_moved',
  'consuming_stopped',
  'reconnected',
  'paused',
  'resumed',
])

/** Those with the error of an attempt. */
const OF_FAILURES = new Set(['retried', 'parked', 'handed_over', 'rejected'])

interface Row {
  name: string
  message_id?: string
  error_type?: string
  /** In nanoseconds. */
  delay?: number
}

/** The event for the JSON of the native half. @internal */
export function made(row: string): Event {
  const { message_id: messageId, error_type: errorType, ...facts } = JSON.parse(row) as Row
  if (facts.delay !== undefined) facts.delay /= 1e6
  if (ABOUT_CONSUMERS.has(facts.name)) return Object.freeze(facts) as Event
  return Object.freeze({ messageId, ...facts, ...(OF_FAILURES.has(facts.name) && { errorType }) }) as Event
}
