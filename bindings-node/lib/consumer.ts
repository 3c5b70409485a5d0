/** A running consumer. */

import { AsyncResource } from 'node:async_hooks'
import { EventEmitter, captureRejectionSymbol } from 'node:events'

import { BatchWorkers } from './batch_workers.js'
import { MANUAL_DESTROY, dispatcher } from './notifications.js'
import { camel } from './errors.js'
import { type Event, type Events, known, made as event } from './events.js'
import { log } from './log.js'
import type { ListenerFlag, Subscription } from './native.js'
import type { Plan } from './options.js'
import { isThenable, message, shown, stack } from './outcome.js'
import { setImmediate } from './timers.js'
import { SingleWorkers } from './single_workers.js'

/** An accepted subscription, and what else its consumer needs. @internal */
export interface NewSubscription {
  id: number
  subscription: Subscription
  listening: ListenerFlag
  /** Events that came before there was a listener, as JSON. */
  earlyEvents: string[]
  /** Whether its client is closing already. */
  closing: boolean
  /** Throws the error with which the client ended by itself, if it did. */
  checkEnd: () => void
}

/** The consumer of a subscription. @internal */
export let consumerOf: (plan: Plan, subscribed: NewSubscription) => Consumer

/** The counters of a queue since its client was made. All consumers of the queue on that client share them. */
export interface Stats {
  /** Messages delivered to the consumer. */
  delivered: number
  /** Messages handled and acknowledged. */
  acked: number
  /** Attempts that failed. */
  failed: number
  /** Messages sent to wait for another attempt. */
  retried: number
  /** Messages that a handler deferred. */
  deferred: number
  /** Messages parked. */
  parked: number
  /** Failed messages handed over to the service, whose policy decides. */
  handedOver: number
  /** Failed messages rejected without requeue, because `dlx` is off. */
  rejected: number
  /** Messages redelivered because their consumer never settled them, or too early with `native`; a copy waits, so that no crash is missed and no delay is skipped. */
  detoured: number
  /** Redeliveries of handled messages, acknowledged and not handled again. */
  alreadyHandled: number
  /** Messages requeued. */
  requeued: number
  /** Messages moved to `<queue>.unreadable`, because RabbitMQ cannot deliver them over AMQP 0-9-1. */
  unreadable: number
  /** Settlements without effect, because the message was already settled or belongs to a lost connection. */
  stale: number
  /** Copies that could not be stored at once. */
  publishFailures: number
  /** How often the consumer consumed again after a lost connection or channel. */
  reconnects: number
  /** How often the consumer paused because too many attempts failed. */
  pauses: number
  /** Messages delivered and not settled yet. */
  outstanding: number
}

/**
 * A running consumer; {@link Client.consume} makes it. It emits {@link Events}: `consumer.on('parked', (event) => …)`.
 *
 * It runs until it is closed, even if no variable refers to it. `await using` closes it at the end of a block. It keeps the process
 * alive until {@link Consumer.unref} is called.
 */
export class Consumer extends EventEmitter<Events> {
  /** The work queue. */
  readonly queue: string
  /**
   * Resolves when the consumer has ended; does not close it. Waiting for it does not keep the process alive, but the consumer does, see
   * {@link Consumer.unref}. Rejects with the error if the client has ended by itself, see `endWhenRefused`, and with a
   * `ClosedError` if a bug in retryrmq has ended the consumer.
   */
  readonly closed: Promise<void>
  /** Resolves at the end; rejects if that was a bug. */
  readonly #end: Promise<void>
  readonly #subscription: Subscription
  readonly #workers: SingleWorkers | BatchWorkers
  readonly #listening: ListenerFlag
  readonly #onEvent: ((event: Event) => void) | undefined
  /** Handlers and listeners run in the asynchronous context in which `consume` was called. */
  readonly #context = new AsyncResource('RetryRmqConsumer', MANUAL_DESTROY)
  #ended = false
  /** Whether it keeps the process alive. */
  #held = false

  private constructor(plan: Plan, { id, subscription, listening, earlyEvents, closing, checkEnd }: NewSubscription) {
    super({ captureRejections: true })
    this.queue = plan.queue
    this.#subscription = subscription
    this.#listening = listening
    const Kind = plan.native.batch === null ? SingleWorkers : BatchWorkers
    this.#workers = new Kind(plan, subscription, id, this.#context)
    this.#onEvent = plan.onEvent
    const deliver = (row: string): void => this.#context.runInAsyncScope(this.#decode, this, row)
    let queued: string[] | undefined = earlyEvents
    dispatcher().subscribe(id, {
      arrived: () => this.#workers.arrived(),
      event: (row) => void (queued === undefined ? deliver(row) : queued.push(row)),
      loopEmpty: () => this.#drain(),
    })
    // Later, so that the caller of `consume` has this consumer, and its listeners on it, before the first handler runs.
    setImmediate(() => {
      queued = undefined
      earlyEvents.forEach(deliver)
      this.#workers.start()
    })
    if (plan.keepAlive) this.ref()
    const abort = (): void => this.#drain()
    plan.signal?.addEventListener('abort', abort, { once: true })
    const settled = (): void => {
      this.#ended = true
      plan.signal?.removeEventListener('abort', abort)
      this.#workers.ended()
      dispatcher().unsubscribe(id)
      this.unref()
      this.#context.emitDestroy()
    }
    this.#end = dispatcher().run<undefined>((ticket) => subscription.waitClosed(dispatcher().native, ticket), { idle: true, settled })
    this.closed = this.#end.then(checkEnd)
    this.closed.catch(() => {}) // no unhandled rejection if nobody waits for it
    // If the caller has aborted meanwhile, no handler may begin.
    if (closing || plan.signal?.aborted === true) abort()
  }

  /** The counters of this queue since its client was made. All consumers of the queue on that client share them. */
  stats(): Stats {
    const numbers = this.#subscription.stats()
    return Object.fromEntries(numbers.map(([name, number]) => [camel(name), number])) as unknown as Stats
  }

  /**
   * Keeps the process alive while this consumer runs. That is the default, unless `keepAlive: false` was given. It undoes
   * {@link Consumer.unref}. Returns the consumer.
   */
  ref(): this {
    if (!this.#held && !this.#ended) {
      this.#held = true
      dispatcher().hold()
    }
    return this
  }

  /**
   * Lets the process end while this consumer runs, if nothing else keeps it alive. The consumer is then closed as by
   * {@link Consumer.close}: handled messages are settled first, and running handlers may finish within `drainTimeout`. `process.exit()`
   * and an uncaught error do not close it; they are a crash. Returns the consumer.
   */
  unref(): this {
    if (this.#held) {
      this.#held = false
      dispatcher().release()
    }
    return this
  }

  /**
   * Drains: takes no more messages, waits for running handlers up to `drainTimeout`, and requeues the rest. It may be called
   * more than once, and from a handler. A handler that awaits it waits for itself; it is abandoned after `drainTimeout`.
   */
  async close(): Promise<void> {
    if (this.#ended) return
    this.#workers.close()
    dispatcher().hold()
    try {
      await this.#end
    } finally {
      dispatcher().release()
    }
  }

  /** Like {@link close}, without a promise. Its error is that of `closed`. */
  #drain(): void {
    this.close().catch(() => {})
  }

  /** Ends now. The `signal` of running handlers aborts. Their messages are delivered again, which counts as a delivery. */
  stop(): void {
    if (this.#ended) return
    this.#workers.stop()
    this.#workers.ended()
    dispatcher().hold()
    const release = (): void => dispatcher().release()
    this.#end.then(release, release)
  }

  /** Like {@link close}. */
  declare readonly [Symbol.asyncDispose]: () => Promise<void>

  static {
    disposable(this)
    consumerOf = (plan, subscribed) => new Consumer(plan, subscribed)
    // Not with `newListener`, which `removeAllListeners` removes. `once` and `prependOnceListener` use these methods, too.
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

  /** Tells an event. One that cannot be read must not end the process, nor keep the consumer from starting. */
  #decode(row: string): void {
    let read: Event
    try {
      read = event(row)
    } catch (error) {
      const fields = { queue: this.queue, error: shown(error) }
      log('error', 'an event could not be decoded', fields, `: ${fields.error}: ${row.slice(0, 1024)}`)
      return
    }
    this.#emit(read)
  }

  #emit(event: Event): void {
    const { name } = event
    try {
      const returned: unknown = this.#onEvent?.(event)
      if (isThenable(returned)) Promise.resolve(returned).catch((error: unknown) => this.#failed(name, 'rejected', error))
    } catch (error) {
      this.#failed(name, 'threw', error)
    }
    try {
      // The name and the event belong together, but the types cannot express that.
      ;(this as EventEmitter).emit(name, event)
    } catch (error) {
      this.#failed(name, 'threw', error)
    }
  }

  /** Called when a listener rejects. @internal */
  override [captureRejectionSymbol](error: unknown, name: string | symbol): void {
    this.#failed(String(name), 'rejected', error)
  }

  #failed(event: string, how: string, error: unknown): void {
    const trace = stack(error)
    const fields = { queue: this.queue, event, error: message(error) ?? shown(error), stack: trace }
    log('error', `a listener of ${event} ${how}`, fields, `: ${trace ?? shown(error)}`)
  }
}

/** Makes `await using` close it, if Node has the symbol for that (18.18 and later). @internal */
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
