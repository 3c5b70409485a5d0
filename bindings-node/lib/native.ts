/** The native half: found, loaded, and described. Private to this package. */

import { platforms } from './platform.js'

/** A batch of messages, and the bodies that are too large to be in it. @internal */
export interface Batch {
  messages: Buffer
  bodies: Buffer[]
}

/** @internal */
export interface NotificationQueue {
  fetch(): Notifications
  answer(request: number, user: string, password: string, expiresIn: number | null): void
  refuse(request: number, why: string): void
  end(): void
}

/** Mostly there is only one kind. @internal */
export interface Notifications {
  done?: number[]
  completed?: { ticket: number; value: unknown }[]
  failed?: { ticket: number; code: string; message: string; detail: string }[]
  ready?: number[]
  /** The number of a subscription, and its event as JSON. */
  events?: [subscription: number, row: string][]
  missed?: number
  credentialRequests?: { function: number; request: number }[]
  /** Requests to which nobody awaits the answer any more. */
  withdrawn?: number[]
  forgotten?: number[]
  lines?: Line[]
}

/** A line of the log. One without fields is only a text. @internal */
export interface Line {
  level: 'error' | 'warn' | 'info' | 'debug'
  text: string
  message?: string
  fields?: [name: string, value: string][]
}

/** @internal */
export interface Options {
  readonly concurrency: number
  readonly batch: number | null
  readonly handlerTimeout: number | null
  readonly drainTimeout: number
  readonly hasRules: boolean
}

/** @internal */
export interface ListenerFlag {
  begin(): void
}

/** @internal */
export interface Connecting {
  giveUp(): void
}

/** @internal */
export interface Client {
  subscribe(notifications: NotificationQueue, ticket: number, options: Options, id: number, listening: ListenerFlag): Connecting
  publish(notifications: NotificationQueue, ticket: number, message: Uint8Array): void
  parked(notifications: NotificationQueue, ticket: number, queue: string): void
  close(notifications: NotificationQueue, ticket: number): void
  metricsText(): string
  trouble(): string | null
  checkEnd(): void
  readonly reconnects: number
  readonly product: string
  readonly version: string
}

/** @internal */
export interface Subscription {
  take(ended: boolean): Batch | null
  listen(notifications: NotificationQueue, id: number): 'some' | 'none' | 'ended'
  settle(handled: Float64Array, count: number, others: Uint8Array | null): void
  giveBack(tokens: Float64Array): void
  close(): void
  abandon(): void
  waitClosed(notifications: NotificationQueue, ticket: number): void
  stats(): [string, number][]
}

/** @internal */
export interface Walk {
  next(notifications: NotificationQueue, ticket: number): void
  replay(notifications: NotificationQueue, ticket: number, record: Record): void
  replayTo(notifications: NotificationQueue, ticket: number, record: Record, queue: string): void
  drop(notifications: NotificationQueue, ticket: number, record: Record): void
  close(notifications: NotificationQueue, ticket: number): void
  readonly remaining: number
  readonly others: number
  readonly missed: number
  readonly warning: string | null
}

/** @internal */
export interface Record {
  message(): Batch
  row(): string
}

/** @internal */
export interface Simulation {
  publish(message: Uint8Array): void
  next(): Batch | null
  readonly elapsed: number
  settle(end: Uint8Array): { what: string; delay?: number; reason?: string; parked?: Batch }
}

/** @internal */
export interface Native {
  VERSION: string
  NotificationQueue: new (wake: () => void) => NotificationQueue
  Options: new (given: string) => Options
  ListenerFlag: new () => ListenerFlag
  Simulation: new (options: Options) => Simulation
  connect(
    notifications: NotificationQueue,
    ticket: number,
    url: string,
    appVersion: string,
    queueType: string | null,
    wait: boolean,
    endWhenRefused: boolean,
    credentials: number | null,
  ): Connecting
  checkUrl(url: string): void
  parseDuration(text: string): number
  durationText(ms: number): string
  readPolicy(text: string): { text: string; retries: number; delays: number[] }
  history(headers: Uint8Array): string
  liveObjects(): [string, number][]
  wantAllLines(): void
}

function load(): Native {
  const { version } = require('../package.json') as { version: string }
  const failures: string[] = []
  // The package of this platform, as it comes from the registry; then the one that was built in this folder.
  for (const name of platforms()) {
    for (const place of [`@retryrmq/${name}`, `../npm/${name}/retryrmq.node`]) {
      try {
        const found = require(place) as Native
        if (found.VERSION === version) return found
        failures.push(`${place} is version ${found.VERSION}, and this package is ${version}`)
      } catch (error) {
        failures.push(error instanceof Error ? (error.message.split('\n')[0] ?? '') : String(error))
      }
    }
  }
  throw new Error(
    `retryrmq has no native module for ${process.platform}-${process.arch}: from a checkout, build it with \`npm run build\` ` +
      `in bindings-node, which needs Rust; from a registry, install without --no-optional; of files, install that of ` +
      `${platforms().map((name) => `@retryrmq/${name}`).join(' or ')} as well (${failures.join('; ')})`,
  )
}

/** @internal */
export const native: Native = load()
