/** The bridge of this environment. It fetches the news of native threads, all that is there in one call. */

import { AsyncResource } from 'node:async_hooks'

import { calledAt, refused } from './errors.js'
import { escaped, log } from './log.js'
import { native, type Bridge as NativeBridge } from './native.js'

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

/** How an operation is waited for. */
interface Asking {
  /** Whether the process may end before. */
  idle?: boolean
  /** Called at the end, after success or failure. A `finally` instead would make a second, unhandled rejection. */
  settled?: () => void
}

const DAY = 86_400_000

/** The bridge lives as long as the environment, so it must not keep the asynchronous context of the first connect. */
const outside = new AsyncResource('RetryRmqBridge')

class Bridge {
  readonly native: NativeBridge
  readonly #waiting = new Map<number, Waiting>()
  readonly #subscribed = new Map<number, Subscribed>()
  readonly #asked = new Map<number, (question: number) => void>()
  /** What ends the calls for open questions. */
  readonly #calls = new Map<number, () => void>()
  #numbers = 0
  #holders = 0
  readonly #keeper = setInterval(() => {}, DAY).unref()

  constructor() {
    this.native = new native.Bridge(() => this.#news())
    // It is emitted again each time that something has kept the loop going.
    process.on('beforeExit', () => each([...this.#subscribed.values()], (subscribed) => subscribed.dry()))
  }

  /** Starts an operation and waits for its answer. The process stays alive until then, unless the operation is idle. */
  ask<T>(begin: (ticket: number) => void, { idle = false, settled }: Asking = {}): Promise<T> {
    const ticket = ++this.#numbers
    begin(ticket)
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

  /** Registers `asked` for questions, until there can be no more, and returns its number. */
  asks(asked: (question: number) => void): number {
    const number = this.number()
    this.#asked.set(number, asked)
    return number
  }

  forget(number: number): void {
    this.#asked.delete(number)
  }

  /** Has `withdrawn` called if nobody awaits the answer to this question any more. Returns a function that ends this. */
  whileAwaited(question: number, withdrawn: () => void): () => void {
    this.#calls.set(question, withdrawn)
    return () => void this.#calls.delete(question)
  }

  /** Keeps the process alive until `release` was called as often. Native threads never keep it alive by themselves. */
  hold(): void {
    if (this.#holders++ === 0) this.#keeper.ref()
  }

  release(): void {
    if (--this.#holders === 0) this.#keeper.unref()
  }

  #news(): void {
    const news = this.native.news()
    each(news.done, (ticket) => this.#take(ticket)?.resolve(undefined))
    each(news.brought, ({ ticket, value }) => this.#take(ticket)?.resolve(value))
    each(news.refused, ({ ticket, code, message, detail }) => {
      this.#take(ticket)?.reject(refused(code, message, detail))
    })
    each(news.lines, ({ level, text }) => log(level, escaped(text)))
    each(news.questions, ({ function: number, question }) => {
      const asked = this.#asked.get(number)
      if (asked === undefined) this.native.refuse(question, 'its client was closed')
      else asked(question)
    })
    each(news.withdrawn, (question) => {
      const withdrawn = this.#calls.get(question)
      this.#calls.delete(question) // a call that hangs all the same is held by nobody
      withdrawn?.()
    })
    each(news.forgotten, (number) => this.forget(number))
    each(news.events, ([subscription, row]) => this.#subscribed.get(subscription)?.told(row))
    if (news.missed !== undefined) log('warn', `${news.missed} events were dropped: their listeners are too slow`)
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
      queueMicrotask(() => {
        throw error
      })
    }
  }
}

let made: Bridge | undefined

/** The bridge of this environment, made at first use. @internal */
export function bridge(): Bridge {
  made ??= outside.runInAsyncScope(() => new Bridge())
  return made
}
