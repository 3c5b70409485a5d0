/**
 * Handlers at work. Messages are taken in batches that grow while handlers are quick, so that a fast handler is not slowed
 * down by the way to its messages, and a slow one never has messages wait behind it that somebody else could handle.
 */

import { AsyncResource } from 'node:async_hooks'

import { bridge } from './bridge.js'
import { seconds, timer } from './duration.js'
import { ClosedError } from './errors.js'
import { log } from './log.js'
import { type Message, mayPark, messages, tokenOf } from './message.js'
import type { Subscription } from './native.js'
import type { Context, Plan } from './options.js'
import { type End, isSignal, judged, writeEnd } from './outcome.js'
import { Writer } from './wire.js'

/** As many messages are taken at once at most. */
const MOST = 64
/** A batch that took longer was too large; milliseconds. */
const QUICK = 1
/** As many acknowledgements are handed over at once at most. */
const ACKS = 32
/** As many bytes of other ends are handed over at once at most. */
const ENDS = 32_768
/** After as many messages, or as many milliseconds, the event loop has its turn. */
const STRETCH = 64
const TURN = 4

const SCOPE = { requireManualDestroy: true }

/** What a handler is given; the signal is made when it is asked for. */
class Attempt implements Context {
  controller: AbortController | undefined
  timer: NodeJS.Timeout | undefined
  /** It came to its end; what the handler still does changes nothing. */
  over = false
  readonly #running: Set<Attempt>

  constructor(running: Set<Attempt>) {
    this.#running = running
  }

  get signal(): AbortSignal {
    if (this.controller === undefined) {
      this.controller = new AbortController()
      if (!this.over) this.#running.add(this)
    }
    return this.controller.signal
  }
}

/** The handlers of one consumer. @internal */
export class Workers {
  readonly #plan: Plan
  readonly #subscription: Subscription
  readonly #id: number
  /** Handlers run in the asynchronous context in which `consume` was called, each in a copy of its own. */
  readonly #context = new AsyncResource('RetryRmqConsumer')
  readonly #most: number
  readonly #limit: number | null
  /** Attempts somebody may have to be told of: those with a signal. */
  readonly #signalled = new Set<Attempt>()

  #ready: Message[] = []
  #next = 0
  #size = 1
  #full = false
  #takenAt = 0

  #running = 0
  #begun = 0
  #turnAt = 0
  #listening = false
  #pumping = false
  #yielding = false
  /** Nothing begins any more. */
  #closing = false
  #stopped = false

  readonly #handled = new Float64Array(ACKS)
  #count = 0
  readonly #others = new Writer(4096)
  #flushing = false
  readonly #flush = (): void => {
    this.#flushing = false
    this.flush()
  }

  constructor(plan: Plan, subscription: Subscription, id: number) {
    this.#plan = plan
    this.#subscription = subscription
    this.#id = id
    this.#most = plan.native.concurrency
    this.#limit = plan.native.handlerTimeout
  }

  start(): void {
    this.arrived()
  }

  /** No more messages; what has begun may finish. */
  close(): void {
    this.#closing = true
    this.#subscription.close()
    this.#returnTheUnstarted()
  }

  /** The end, now. */
  stop(): void {
    this.flush()
    this.#closing = this.#stopped = true
    this.#subscription.abandon()
    this.#ready = []
    this.#next = 0
  }

  /** The subscription is at its end: whoever still runs is told. */
  ended(): void {
    this.#closing = this.#stopped = true
    for (const attempt of this.#signalled) {
      attempt.over = true
      attempt.controller?.abort(new ClosedError(`the consumer of ${this.#plan.queue} was closed`))
    }
    this.#signalled.clear()
  }

  /** There is something to look at. */
  arrived(): void {
    this.#listening = false
    this.#turn()
    this.#pump()
  }

  /** Hands over the ends of attempts. */
  flush(): void {
    if (this.#count === 0 && this.#others.length === 0) return
    const others = this.#others.length === 0 ? null : this.#others.done()
    this.#subscription.settle(this.#handled, this.#count, others)
    this.#count = 0
    this.#others.clear()
  }

  /** Looks for messages; when there are none, has the bridge say when to look again. Whether there are some. */
  #listen(): boolean {
    if (this.#listening || this.#stopped) return false
    const arrivals = this.#subscription.listen(bridge().native, this.#id)
    this.#listening = arrivals !== 'some'
    return !this.#listening
  }

  #returnTheUnstarted(): void {
    if (this.#next < this.#ready.length) {
      this.#subscription.giveBack(Float64Array.from(this.#ready.slice(this.#next), tokenOf))
    }
    this.#ready = []
    this.#next = 0
  }

  #turn(): void {
    this.#begun = 0
    this.#turnAt = performance.now()
  }

  #take(): Message | undefined {
    if (this.#next < this.#ready.length) return this.#ready[this.#next++]
    const batch = this.#subscription.take(this.#size)
    if (batch === null) return undefined
    this.#ready = messages(this.#plan.queue, batch)
    const now = performance.now()
    const quick = now - this.#takenAt < QUICK
    if (!quick) this.#size = Math.max(this.#size >> 1, 1)
    else if (this.#full) this.#size = Math.min(this.#size * 2, MOST)
    this.#full = this.#ready.length >= this.#size
    this.#takenAt = now
    this.#next = 1
    return this.#ready[0]
  }

  /** Begins as many attempts as may run. */
  #pump(): void {
    if (this.#pumping || this.#yielding || this.#running >= this.#most) return
    this.#pumping = true
    this.#context.runInAsyncScope(this.#work, this)
    this.#pumping = false
  }

  #work(): void {
    while (!this.#closing && this.#running < this.#most) {
      if (this.#begun >= STRETCH || (this.#begun > 0 && performance.now() - this.#turnAt > TURN)) {
        this.#yielding = true
        setImmediate(() => {
          this.#yielding = false
          this.#turn()
          this.#pump()
        })
        break
      }
      const message = this.#take()
      if (message === undefined) {
        if (this.#listen()) continue
        break
      }
      this.#begun++
      this.#begin(message)
    }
  }

  #begin(message: Message): void {
    const attempt = new Attempt(this.#signalled)
    let result: Promise<unknown>
    try {
      const scope = new AsyncResource('RetryRmqHandler', SCOPE)
      const returned = scope.runInAsyncScope(this.#plan.handler, undefined, message, attempt)
      if (!isThenable(returned)) {
        this.#end(attempt)
        this.#returned(message, returned)
        return
      }
      result = Promise.resolve(returned)
    } catch (error) {
      this.#end(attempt)
      this.#failed(message, error)
      return
    }
    this.#running++
    if (this.#limit !== null) attempt.timer = timer(this.#limit, () => this.#late(message, attempt))
    result.then(
      (value) => {
        if (attempt.over) return
        this.#end(attempt)
        this.#running--
        this.#returned(message, value)
        this.#pump()
      },
      (error: unknown) => {
        if (attempt.over) return
        this.#end(attempt)
        this.#running--
        this.#failed(message, error)
        this.#pump()
      },
    )
  }

  #end(attempt: Attempt): void {
    attempt.over = true
    if (attempt.timer !== undefined) clearTimeout(attempt.timer)
    if (attempt.controller !== undefined) this.#signalled.delete(attempt)
  }

  #late(message: Message, attempt: Attempt): void {
    this.#end(attempt)
    this.#running--
    const error = `the handler took longer than ${seconds(this.#limit ?? 0)}`
    const kinds = ['TimeoutError']
    this.#settle(message, { what: 'retry', delay: undefined, error, type: 'HandlerTimeout', kinds, stack: undefined })
    log('warn', `${this.#plan.queue}: ${name(message)} failed: ${error}`)
    attempt.controller?.abort(new DOMException(error, 'TimeoutError'))
    this.#pump()
  }

  #returned(message: Message, value: unknown): void {
    // A signal that was returned and not thrown: to acknowledge would be the opposite of what was meant.
    if (isSignal(value)) return this.#failed(message, value)
    this.#handled[this.#count++] = tokenOf(message)
    if (this.#count >= ACKS) this.flush()
    else this.#flushSoon()
  }

  #failed(message: Message, error: unknown): void {
    const parks = mayPark(message)
    const end = judged(error, this.#plan.fatal, { kinds: this.#plan.native.hasRules, stack: parks })
    this.#settle(message, end)
    const what = `${this.#plan.queue}: ${name(message)}`
    if (end.what === 'defer') log('debug', `${what} is deferred`)
    else if (parks || end.what !== 'retry') log('warn', `${what} failed: ${end.stack ?? end.error}`)
    else log('info', `${what} failed: ${end.error}`)
  }

  #settle(message: Message, end: End): void {
    writeEnd(this.#others, tokenOf(message), end)
    if (this.#others.length >= ENDS) this.flush()
    else this.#flushSoon()
  }

  #flushSoon(): void {
    if (this.#flushing) return
    this.#flushing = true
    setImmediate(this.#flush)
  }
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) return false
  return typeof (value as { then?: unknown }).then === 'function'
}

function name(message: Message): string {
  const id = message.messageId
  return `attempt ${message.attempt} of ${id === undefined ? 'a message without id' : `message ${id}`}`
}
