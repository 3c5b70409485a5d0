/** The bridge of this environment. It fetches the news of native threads, all that is there in one call. */

import { AsyncResource } from 'node:async_hooks'

import { calledAt, refused } from './errors.js'
import { escaped, fieldsOf, log } from './log.js'
import { native, type Bridge as NativeBridge } from './native.js'
import { clearInterval, setImmediate, setInterval } from './timers.js'

interface Waiting {
  resolve(value: unknown): void
  reject(error: Error): void
}

/** The listener for a subscription's news. @internal */
export interface Subscribed {
  arrived(): void
  told(row: string): void
  /** The event loop is empty: the process is about to end. */
  dry(): void
}

/** A function that is asked for a login. @internal */
export interface Asked {
  question(question: number): void
  /** Nobody can ask it any more. */
  forgotten(): void
}

/** How an operation is waited for. */
interface Asking {
  /** Whether the process may end before. */
  idle?: boolean
  /** Called at the end, after success or failure. A `finally` instead would make a second, unhandled rejection. */
  settled?: () => void
}

const DAY = 86_400_000

/** A detector of leaks shows an asynchronous context until it is destroyed: at its end, and not at some later garbage collection. @internal */
export const BY_HAND = { requireManualDestroy: true }

/** The bridge lives longer than the call that makes it, so it must not keep the asynchronous context of that call. */
const outside = new AsyncResource('RetryRmqBridge', BY_HAND).emitDestroy()

class Bridge {
  readonly native: NativeBridge
  readonly #waiting = new Map<number, Waiting>()
  readonly #subscribed = new Map<number, Subscribed>()
  readonly #asked = new Map<number, Asked>()
  /** What ends the calls for open questions. */
  readonly #calls = new Map<number, () => void>()
  #numbers = 0
  #holders = 0
  /** Clients that were not closed. */
  #clients = 0
  readonly #keeper = setInterval(() => {}, DAY).unref()
  /** It is emitted again each time that something has kept the loop going. */
  readonly #dry = (): void => each([...this.#subscribed.values()], (subscribed) => subscribed.dry())

  constructor() {
    this.native = new native.Bridge(() => this.#news())
    process.on('beforeExit', this.#dry)
  }

  /** A client was made. The bridge lives until all are closed, and nobody waits for an answer. */
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
    if (made !== this || this.#clients > 0 || this.#holders > 0 || this.#waiting.size > 0) return
    if (this.#calls.size > 0) return // they are told to end
    made = undefined
    this.#news() // the last lines of the log
    process.off('beforeExit', this.#dry)
    clearInterval(this.#keeper)
    this.native.end()
  }

  /** Starts an operation and waits for its answer. The process stays alive until then, unless the operation is idle. */
  ask<T>(begin: (ticket: number) => void, { idle = false, settled }: Asking = {}): Promise<T> {
    const ticket = ++this.#numbers
    try {
      begin(ticket)
    } catch (error) {
      this.#endSoon()
      throw error
    }
    const call: { stack?: unknown } = {}
    Error.captureStackTrace(call, this.ask)
    if (!idle) this.hold()
    return new Promise<T>((resolve, reject) => {
      const release = (): void => {
        if (!idle) this.release()
        settled?.()
      }
      this.#waiting.set(ticket, {
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

  /** A number for a subscription. */
  number(): number {
    return ++this.#numbers
  }

  /** Registers the listener of the subscription with this number. It stays alive until it is unregistered. */
  subscribe(id: number, subscribed: Subscribed): void {
    this.#subscribed.set(id, subscribed)
  }

  unsubscribe(id: number): void {
    this.#subscribed.delete(id)
  }

  /** Registers a function for questions, until there can be no more, and returns its number. */
  asks(asked: Asked): number {
    const number = this.number()
    this.#asked.set(number, asked)
    return number
  }

  forget(number: number): void {
    const asked = this.#asked.get(number)
    this.#asked.delete(number)
    asked?.forgotten()
  }

  /** Has `withdrawn` called if nobody awaits the answer to this question any more. Returns a function that ends this. */
  whileAwaited(question: number, withdrawn: () => void): () => void {
    this.#calls.set(question, withdrawn)
    return () => {
      if (this.#calls.delete(question)) this.#endSoon()
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

  #news(): void {
    const news = this.native.news()
    each(news.done, (ticket) => this.#take(ticket)?.resolve(undefined))
    each(news.brought, ({ ticket, value }) => this.#take(ticket)?.resolve(value))
    each(news.refused, ({ ticket, code, message, detail }) => {
      this.#take(ticket)?.reject(refused(code, message, detail))
    })
    each(news.lines, ({ level, text, message = text, fields = [] }) => {
      log(level, escaped(message), fieldsOf(fields), escaped(text.slice(message.length)))
    })
    each(news.questions, ({ function: number, question }) => {
      const asked = this.#asked.get(number)
      if (asked === undefined) this.native.refuse(question, 'its client was closed')
      else asked.question(question)
    })
    each(news.withdrawn, (question) => {
      const withdrawn = this.#calls.get(question)
      this.#calls.delete(question) // a call that hangs all the same is held by nobody
      this.#endSoon()
      withdrawn?.()
    })
    each(news.forgotten, (number) => this.forget(number))
    each(news.events, ([subscription, row]) => this.#subscribed.get(subscription)?.told(row))
    if (news.missed !== undefined) {
      log('warn', `${news.missed} events were dropped: their listeners are too slow`, { dropped: news.missed })
    }
    each(news.ready, (subscription) => this.#subscribed.get(subscription)?.arrived())
  }

  #take(ticket: number): Waiting | undefined {
    const waiting = this.#waiting.get(ticket)
    this.#waiting.delete(ticket)
    return waiting
  }
}

/**
 * Calls `tell` with all of them, even if it throws for one, because news comes only once. An error becomes an uncaught one.
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

let made: Bridge | undefined

/** The bridge of this environment, made at first use, and again at the first use after its end. @internal */
export function bridge(): Bridge {
  made ??= outside.runInAsyncScope(() => new Bridge())
  return made
}
