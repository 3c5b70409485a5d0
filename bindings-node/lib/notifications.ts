/** The dispatcher of this environment. It fetches the notifications of native threads, all that are there in one call. */

import { AsyncResource } from 'node:async_hooks'

import { calledAt, refused } from './errors.js'
import { escaped, fieldsOf, log } from './log.js'
import { type NotificationQueue, native } from './native.js'
import { clearInterval, setImmediate, setInterval } from './timers.js'

interface PendingOperation {
  resolve(value: unknown): void
  reject(error: Error): void
}

/** The listener for a subscription's notifications. @internal */
export interface SubscriptionListener {
  arrived(): void
  event(row: string): void
  /** The event loop is empty: the process is about to end. */
  loopEmpty(): void
}

/** A function that is called for credentials. @internal */
export interface CredentialProvider {
  request(request: number): void
  /** Nobody can call it any more. */
  forgotten(): void
}

/** How an operation is waited for. */
interface WaitOptions {
  /** Whether the process may end before. */
  idle?: boolean
  /** Called at the end, after success or failure. A `finally` instead would make a second, unhandled rejection. */
  settled?: () => void
}

const DAY = 86_400_000

/** A detector of leaks shows an asynchronous context until it is destroyed: at its end, and not at some later garbage collection. @internal */
export const MANUAL_DESTROY = { requireManualDestroy: true }

/** The dispatcher lives longer than the call that makes it, so it must not keep the asynchronous context of that call. */
const noContext = new AsyncResource('RetryRmqNotifications', MANUAL_DESTROY).emitDestroy()

class NotificationDispatcher {
  readonly native: NotificationQueue
  readonly #pending = new Map<number, PendingOperation>()
  readonly #subscriptions = new Map<number, SubscriptionListener>()
  readonly #credentialProviders = new Map<number, CredentialProvider>()
  /** What ends the calls for open requests. */
  readonly #credentialCalls = new Map<number, () => void>()
  #numbers = 0
  #holders = 0
  /** Clients that were not closed. */
  #clients = 0
  readonly #keeper = setInterval(() => {}, DAY).unref()
  /** It is emitted again each time that something has kept the loop going. */
  readonly #loopEmpty = (): void => each([...this.#subscriptions.values()], (listener) => listener.loopEmpty())

  constructor() {
    this.native = new native.NotificationQueue(() => this.#dispatch())
    process.on('beforeExit', this.#loopEmpty)
  }

  /** A client was made. The dispatcher lives until all are closed, and nobody waits for an answer. */
  opened(): void {
    this.#clients++
  }

  closed(): void {
    this.#clients--
    this.#endIfIdle()
  }

  /** Not at once: the answer to an operation may be a client. */
  #endSoon(): void {
    setImmediate(() => this.#endIfIdle())
  }

  /** Leaves nothing behind, not even a handle that keeps no process alive: test runners look for those. */
  #endIfIdle(): void {
    if (current !== this || this.#clients > 0 || this.#holders > 0 || this.#pending.size > 0) return
    if (this.#credentialCalls.size > 0) return // they are told to end
    current = undefined
    this.#dispatch() // the last lines of the log
    process.off('beforeExit', this.#loopEmpty)
    clearInterval(this.#keeper)
    this.native.end()
  }

  /** Starts an operation and waits for its answer. The process stays alive until then, unless the operation is idle. */
  run<T>(begin: (ticket: number) => void, { idle = false, settled }: WaitOptions = {}): Promise<T> {
    const ticket = ++this.#numbers
    try {
      begin(ticket)
    } catch (error) {
      this.#endSoon()
      throw error
    }
    const call: { stack?: unknown } = {}
    Error.captureStackTrace(call, this.run)
    if (!idle) this.hold()
    return new Promise<T>((resolve, reject) => {
      const release = (): void => {
        if (!idle) this.release()
        settled?.()
      }
      this.#pending.set(ticket, {
        resolve: (value) => {
          release()
          resolve(value as T)
        },
        reject: (error) => {
          release()
          reject(calledAt(error, call.stack))
        },
      })
    })
  }

  /** Ends an operation that no native thread answers. */
  answer(ticket: number, value?: unknown): void {
    // Later, because an operation may be answered while it begins.
    queueMicrotask(() => this.#take(ticket)?.resolve(value))
  }

  /** A number for a subscription. */
  number(): number {
    return ++this.#numbers
  }

  /** Registers the listener of the subscription with this number. It stays alive until it is unregistered. */
  subscribe(id: number, listener: SubscriptionListener): void {
    this.#subscriptions.set(id, listener)
  }

  unsubscribe(id: number): void {
    this.#subscriptions.delete(id)
  }

  /** Registers a function for credentials, until there can be no more, and returns its number. */
  addCredentialProvider(provider: CredentialProvider): number {
    const number = this.number()
    this.#credentialProviders.set(number, provider)
    return number
  }

  forget(number: number): void {
    const provider = this.#credentialProviders.get(number)
    this.#credentialProviders.delete(number)
    provider?.forgotten()
  }

  /** Has `withdrawn` called if nobody awaits the answer to this request any more. Returns a function that ends this. */
  onWithdrawn(request: number, withdrawn: () => void): () => void {
    this.#credentialCalls.set(request, withdrawn)
    return () => {
      if (this.#credentialCalls.delete(request)) this.#endSoon()
    }
  }

  /** Keeps the process alive until `release` was called as often. Native threads never keep it alive by themselves. */
  hold(): void {
    if (this.#holders++ === 0) this.#keeper.ref()
  }

  release(): void {
    if (--this.#holders > 0) return
    this.#keeper.unref()
    this.#endSoon()
  }

  #dispatch(): void {
    const notifications = this.native.fetch()
    each(notifications.done, (ticket) => this.#take(ticket)?.resolve(undefined))
    each(notifications.completed, ({ ticket, value }) => this.#take(ticket)?.resolve(value))
    each(notifications.failed, ({ ticket, code, message, detail }) => {
      this.#take(ticket)?.reject(refused(code, message, detail))
    })
    each(notifications.lines, ({ level, text, message = text, fields = [] }) => {
      log(level, escaped(message), fieldsOf(fields), escaped(text.slice(message.length)))
    })
    each(notifications.credentialRequests, ({ function: number, request }) => {
      const provider = this.#credentialProviders.get(number)
      if (provider === undefined) this.native.refuse(request, 'its client was closed')
      else provider.request(request)
    })
    each(notifications.withdrawn, (request) => {
      const withdrawn = this.#credentialCalls.get(request)
      this.#credentialCalls.delete(request) // a call that hangs all the same is held by nobody
      this.#endSoon()
      withdrawn?.()
    })
    each(notifications.forgotten, (number) => this.forget(number))
    each(notifications.events, ([subscription, row]) => this.#subscriptions.get(subscription)?.event(row))
    if (notifications.missed !== undefined) {
      log('warn', `${notifications.missed} events were dropped: their listeners are too slow`, { dropped: notifications.missed })
    }
    each(notifications.ready, (subscription) => this.#subscriptions.get(subscription)?.arrived())
  }

  #take(ticket: number): PendingOperation | undefined {
    const pending = this.#pending.get(ticket)
    this.#pending.delete(ticket)
    return pending
  }
}

/**
 * Calls `tell` with all of them, even if it throws for one, because notifications come only once. An error becomes an uncaught one.
 */
function each<T>(all: readonly T[] | undefined, tell: (one: T) => void): void {
  for (const one of all ?? []) {
    try {
      tell(one)
    } catch (error) {
      setImmediate(() => {
        throw error
      })
    }
  }
}

let current: NotificationDispatcher | undefined

/** The dispatcher of this environment, made at first use, and again at the first use after its end. @internal */
export function dispatcher(): NotificationDispatcher {
  current ??= noContext.runInAsyncScope(() => new NotificationDispatcher())
  return current
}
