/** A running consumer. */

import { AsyncResource } from 'node:async_hooks'
import { EventEmitter, captureRejectionSymbol } from 'node:events'

import { bridge } from './bridge.js'
import { camel } from './errors.js'
import { type Event, type Events, known, made as event } from './events.js'
import { log } from './log.js'
import type { Listening, Subscription, Told } from './native.js'
import type { Plan } from './options.js'
import { isThenable, shown, stack } from './outcome.js'
import { Workers } from './workers.js'

/** A subscription that was accepted, and what its consumer needs beside it. @internal */
export interface Subscribed {
  id: number
  subscription: Subscription
  listening: Listening
  /** What happened before there was anybody to be told. */
  told: Told[]
  /** Its client is closing already. */
  closing: boolean
  /** Throws why the client ended by itself, if it did. */
  checkEnd: () => void
}

/** The consumer of a subscription. @internal */
export let consumerOf: (plan: Plan, subscribed: Subscribed) => Consumer

/** The numbers of a queue's consumers since their client was made. */
export interface Stats {
  /** Messages delivered to the consumer. */
  delivered: number
  /** Messages handled and acknowledged. */
  acked: number
  /** Attempts that failed. */
  failed: number
  /** Messages sent to wait for another attempt. */
  retried: number
  /** Messages deferred by their handler. */
  deferred: number
  /** Messages parked. */
  parked: number
  /** Failed messages handed over to the service, whose policy decides. */
  handedOver: number
  /** Messages rejected because the consumer has no retries. */
  rejected: number
  /** Messages that were with a consumer when it went away, sent on a counted detour. */
  detoured: number
  /** Redeliveries of handled messages, acknowledged without running them again. */
  alreadyHandled: number
  /** Messages given back to their queue. */
  requeued: number
  /** Settlements of messages that were already settled or belong to a lost connection. */
  stale: number
  /** Copies that could not be stored at once. */
  publishFailures: number
  /** Times the consumer came back after a loss. */
  reconnects: number
  /** Times the consumer paused because too many attempts failed. */
  pauses: number
  /** Messages delivered and not settled yet. */
  outstanding: number
}

/**
 * A running consumer, made by `consume`. It emits {@link Events}: `consumer.on('parked', (event) => …)`.
 *
 * It runs until it is closed, whether or not anybody keeps it; `await using` closes it at the end of a block. The process stays
 * alive for it, unless {@link Consumer.unref} says otherwise.
 */
export class Consumer extends EventEmitter<Events> {
  /** The work queue. */
  readonly queue: string
  /**
   * Resolves at the end, without asking for it. To wait for it does not keep the process alive; the consumer does, see
   * {@link Consumer.unref}. Rejects when the client has ended by itself, see `endWhenRefused`.
   */
  readonly closed: Promise<void>
  /** The end, whatever it came by. */
  readonly #end: Promise<void>
  readonly #subscription: Subscription
  readonly #workers: Workers
  readonly #listening: Listening
  readonly #onEvent: ((event: Event) => void) | undefined
  /** Handlers and listeners run in the asynchronous context in which `consume` was called. */
  readonly #context = new AsyncResource('RetryRmqConsumer')
  #ended = false
  /** It keeps the process alive. */
  #held = false

  private constructor(plan: Plan, { id, subscription, listening, told, closing, checkEnd }: Subscribed) {
    super({ captureRejections: true })
    this.queue = plan.queue
    this.#subscription = subscription
    this.#listening = listening
    this.#workers = new Workers(plan, subscription, id, this.#context)
    this.#onEvent = plan.onEvent
    const tell = (told: Told): void => this.#context.runInAsyncScope(this.#tell, this, event(told))
    let early: Told[] | undefined = told
    bridge().subscribe(id, {
      arrived: () => this.#workers.arrived(),
      told: (told) => void (early === undefined ? tell(told) : early.push(told)),
      dry: () => this.#drain(),
    })
    // Once whoever waits for this consumer has it, for handlers to use, and has listeners at it.
    setImmediate(() => {
      early = undefined
      told.forEach(tell)
      this.#workers.start()
    })
    if (plan.keepAlive) this.ref()
    const abort = (): void => this.#drain()
    plan.signal?.addEventListener('abort', abort, { once: true })
    const settled = (): void => {
      this.#ended = true
      plan.signal?.removeEventListener('abort', abort)
      this.#workers.ended()
      bridge().unsubscribe(id)
      this.unref()
    }
    this.#end = bridge().ask<undefined>((ticket) => subscription.waitClosed(bridge().native, ticket), { idle: true, settled })
    this.closed = this.#end.then(checkEnd)
    this.closed.catch(() => {}) // whoever does not wait for it need not hear of it
    // Whoever gave up in the meantime wants no handler to begin.
    if (closing || plan.signal?.aborted === true) abort()
  }

  /** The numbers of this queue since its client was made. */
  stats(): Stats {
    const numbers = this.#subscription.stats()
    return Object.fromEntries(numbers.map(([name, number]) => [camel(name), number])) as unknown as Stats
  }

  /**
   * Has the process stay alive for as long as this consumer runs, which is so unless `keepAlive: false` or {@link Consumer.unref}
   * says otherwise. Returns the consumer.
   */
  ref(): this {
    if (!this.#held && !this.#ended) {
      this.#held = true
      bridge().hold()
    }
    return this
  }

  /**
   * Lets the process end while this consumer runs, when nothing else keeps it alive. Then the consumer is closed as by
   * {@link Consumer.close}: what was handled is settled before the process is gone, and what runs may finish for `drainTimeout`. Not
   * so after `process.exit()` or an uncaught error, which are a crash. Returns the consumer.
   */
  unref(): this {
    if (this.#held) {
      this.#held = false
      bridge().release()
    }
    return this
  }

  /**
   * Drains: takes no more messages, lets handlers finish (for `drainTimeout` at most), settles, gives the rest back. May be
   * called twice, and by a handler; a handler that waits for it waits for itself, and is given up on at `drainTimeout`.
   */
  async close(): Promise<void> {
    if (this.#ended) return
    this.#workers.close()
    bridge().hold()
    try {
      await this.#end
    } finally {
      bridge().release()
    }
  }

  /** As {@link close}, for nobody who waits: whether it fails, `closed` tells. */
  #drain(): void {
    this.close().catch(() => {})
  }

  /** Ends now: handlers are not waited for, their `signal` aborts, and what they hold comes again. */
  stop(): void {
    if (this.#ended) return
    this.#workers.stop()
    this.#workers.ended()
    bridge().hold()
    const release = (): void => bridge().release()
    this.#end.then(release, release)
  }

  /** As {@link close}. */
  declare readonly [Symbol.asyncDispose]: () => Promise<void>

  static {
    disposable(this)
    consumerOf = (plan, subscribed) => new Consumer(plan, subscribed)
    // Not by `newListener`, which `removeAllListeners` forgets. `once` and `prependOnceListener` come by these, too.
    for (const method of ['on', 'addListener', 'prependListener'] as const) {
      const add = EventEmitter.prototype[method]
      Object.defineProperty(this.prototype, method, {
        value(this: Consumer, name: string | symbol, listener: (...args: unknown[]) => void) {
          known(name)
          this.#listening.begin()
          return add.call(this, name, listener)
        },
        configurable: true,
        writable: true,
      })
    }
  }

  #tell(event: Event): void {
    const { name } = event
    try {
      const returned: unknown = this.#onEvent?.(event)
      if (isThenable(returned)) Promise.resolve(returned).catch((error: unknown) => failed(name, 'rejected', error))
    } catch (error) {
      failed(name, 'threw', error)
    }
    try {
      // The pair of name and event fits, which a union of pairs does not say.
      ;(this as EventEmitter).emit(name, event)
    } catch (error) {
      failed(name, 'threw', error)
    }
  }

  /** Called when a listener rejects. @internal */
  override [captureRejectionSymbol](error: unknown, name: string | symbol): void {
    failed(String(name), 'rejected', error)
  }
}

function failed(name: string, how: string, error: unknown): void {
  log('error', `a listener of ${name} ${how}: ${stack(error) ?? shown(error)}`)
}

/** Has `await using` close it, where there is a symbol for that: before Node 18.18 there is none. @internal */
export function disposable(Class: { readonly prototype: { close(): Promise<void> } }): void {
  if (typeof Symbol.asyncDispose !== 'symbol') return
  Object.defineProperty(Class.prototype, Symbol.asyncDispose, {
    value(this: { close(): Promise<void> }) {
      return this.close()
    },
    configurable: true,
    writable: true,
  })
}
