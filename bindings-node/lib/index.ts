/// <reference types="node" preserve="true" />

/**
 * Retry messages on RabbitMQ, safely, with one line: `dlx: true`.
 *
 * If a handler returns, its message is acknowledged. If it throws, the message waits in the broker and comes back at the tail of its
 * queue. Each retry is counted. In the end the message is handled, or parked with a record that a person can read.
 *
 * @packageDocumentation
 */

export { Client, connect, type ConnectOptions } from './client.js'
export { Consumer, type Stats } from './consumer.js'
export type { Credentials, Login } from './credentials.js'
export type { Duration } from './duration.js'
export {
  AccessRefusedError,
  AuthenticationFailedError,
  BrokerError,
  BrokerTimeoutError,
  ClosedError,
  ConnectionLostError,
  InvalidOptionError,
  InvalidPolicyError,
  InvalidTypeError,
  InvalidUrlError,
  MismatchError,
  NotConfirmedError,
  QueueNotFoundError,
  RetryRmqError,
  StrategyRefusedError,
  TlsFailedError,
  TooLargeError,
  UnreachableError,
  UnroutableError,
  VhostNotFoundError,
  type ErrorCode,
} from './errors.js'
export type {
  AlreadyHandled,
  ConsumingStopped,
  Deferred,
  Detoured,
  Disconnected,
  Event,
  Events,
  HandedOver,
  LoginRefused,
  Parked,
  ParkReason,
  Paused,
  PublishFailed,
  Reconnected,
  Rejected,
  Replayed,
  Requeued,
  Resumed,
  Retried,
  UnreadableMoved,
} from './events.js'
export { setLogger, type FieldsFirstLogger, type FieldsLastLogger, type LogFields, type Logger, type LoggerOptions } from './log.js'
export { Message, type HistoryEntry, type Properties } from './message.js'
export type { Middleware, Next, Publish, PublishMiddleware, PublishNext } from './middleware.js'
export type { BatchHandler, BatchOptions, ConsumerOptions, Context, Handler, Pause, QueueType, Strategy, WorkQueue } from './options.js'
export { Defer, Park, RetryAfter, Undecodable, defer, park, retryAfter, undecodable } from './outcome.js'
export { ParkedMessage, ParkedMessages } from './parked.js'
export {
  Policy,
  Rule,
  exponential,
  fixed,
  linear,
  list,
  rule,
  type Conditions,
  type ErrorClass,
  type ExponentialOptions,
  type LinearOptions,
  type PolicyOptions,
} from './policy.js'
export type { Body, PublishOptions } from './publish.js'
export { ValidationError, typed, type StandardIssue, type StandardResult, type StandardSchema, type TypedOptions } from './typed_bodies.js'
export { Decimal, type HeaderInput, type HeaderValue, type Headers } from './values.js'
