/** Events: what happened to which message, as typed values. */

import { InvalidTypeError } from './errors.js'
import type { Told } from './native.js'

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

/** A failed message is on its way to wait; its original is acknowledged. */
export interface Retried extends AboutMessage<'retried'> {
  /** The attempt that failed; 1 is the first delivery. */
  readonly attempt: number
  /** How long it waits, in milliseconds. */
  readonly delay: number
  /** Why it failed. */
  readonly error: string
}

/** A message was deferred by its handler. */
export interface Deferred extends AboutMessage<'deferred'> {
  /** How long it waits, in milliseconds. */
  readonly delay: number
}

/** A message was parked. */
export interface Parked extends AboutMessage<'parked'> {
  /** The last attempt made. */
  readonly attempt: number
  /** Why. */
  readonly reason: ParkReason
  /** The last failure. */
  readonly error: string
}

/** With the strategy `service`: a failed message was handed over to the service, whose policy decides; its original is acknowledged. */
export interface HandedOver extends AboutMessage<'handed_over'> {
  /** The attempt that failed; 1 is the first delivery. */
  readonly attempt: number
  /** Why it failed. */
  readonly error: string
}

/** Without `dlx`: a failed message was rejected; the queue's own dead-lettering decides. */
export interface Rejected extends AboutMessage<'rejected'> {
  /** Why it failed. */
  readonly error: string
}

/** A message that was with a consumer when that went away takes a detour, so that the crash is counted. */
export interface Detoured extends AboutMessage<'detoured'> {
  /** Crashes so far. */
  readonly crashes: number
}

/** A message that was handled before the connection dropped came again, and was acknowledged without running again. */
export type AlreadyHandled = AboutMessage<'already_handled'>

/** A message that was replayed from the parking queue arrived, to be handled again. */
export type Replayed = AboutMessage<'replayed'>

/** A copy could not be stored; it is tried again, and the original is still unacknowledged. */
export interface PublishFailed extends AboutMessage<'publish_failed'> {
  /** Why. */
  readonly error: string
}

/** Copies could not be stored for long: the message goes back to its queue. */
export type Requeued = AboutMessage<'requeued'>

/** The connection or the channel was lost; what was unacknowledged comes again. */
export type Disconnected = About<'disconnected'>

/**
 * The connection was lost, and the broker refuses the login or the virtual host now. It is tried again; somebody has
 * to change the login or the virtual host.
 */
export interface LoginRefused extends About<'login_refused'> {
  /** What the broker refuses. */
  readonly error: string
}

/** Consuming again after a loss. */
export type Reconnected = About<'reconnected'>

/** Too large a share of attempts failed: no messages are taken for a while. */
export interface Paused extends About<'paused'> {
  /** For how long, in milliseconds. */
  readonly delay: number
}

/** The probe message succeeded: messages are taken again. */
export type Resumed = About<'resumed'>

/** Everything that can happen. */
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
  | Reconnected
  | Paused
  | Resumed

/** The events by name, and what their listeners are called with. */
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
  reconnected: true,
  paused: true,
  resumed: true,
}
/** What every emitter has; `once` of `node:events` listens for errors. */
const EVERY = ['error', 'newListener', 'removeListener']

/** Refuses the name of an event that never comes. @internal */
export function known(name: unknown): void {
  if (typeof name === 'symbol' || EVERY.includes(name as string) || Object.hasOwn(NAMES, name as string)) return
  throw new InvalidTypeError(`there is no event \`${String(name)}\`; the events are ${Object.keys(NAMES).join(', ')}`)
}

const ABOUT_CONSUMERS = new Set(['disconnected', 'login_refused', 'reconnected', 'paused', 'resumed'])

/** The event that was told. @internal */
export function made(told: Told): Event {
  const { subscription: _, ...facts } = told
  const event = ABOUT_CONSUMERS.has(told.name) ? facts : { messageId: undefined, ...facts }
  return Object.freeze(event) as Event
}
