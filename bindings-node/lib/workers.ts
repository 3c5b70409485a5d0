/** Runs handlers. The native half decides how many messages are taken at once. */

import { AsyncResource } from 'node:async_hooks'

import { bridge } from './bridge.js'
import { timer } from './duration.js'
import { ClosedError } from './errors.js'
import { escaped, log } from './log.js'
import { type Message, mayPark, messages, tokenOf, tokens } from './message.js'
import type { Batch, Subscription } from './native.js'
import type { Context, Plan } from './options.js'
import { type End, isSignal, isThenable, judged, timedOut, writeEnd } from './outcome.js'
import { undone } from './returned.js'
import { Writer } from './wire.js'

/** The most acknowledgements passed to the core at once. */
const ACKS = 32
/** The most bytes of other outcomes passed to the core at once. */
const ENDS = 32_768
/** After this number of messages, or of milliseconds, the event loop gets its turn. */
const STRETCH = 64
const TURN = 4
/** How many milliseconds it pauses after a batch that cannot be read: it comes again at once. */
const FAULT_PAUSE = 500

/** The context of one message: plain fields, and a signal that is made on first use. */
class Attempt implements Context {
  readonly workers: Workers
  controller: AbortController | undefined = undefined
  timer: NodeJS.Timeout | undefined = undefined
  /** The attempt has ended; what the handler still does changes nothing. */
  over = false
  /** Why it ended without its handler. */
  reason: unknown = undefined

  constructor(workers: Workers) {
    this.workers = workers
  }

  get signal(): AbortSignal {
    if (this.controller === undefined) {
      this.controller = new AbortController()
      const reason = this.over ? this.reason : this.workers.gone
      if (reason !== undefined) this.controller.abort(reason)
      else if (!this.over) this.workers.watch(this)
    }
    return this.controller.signal
  }

  /** Ends the attempt without its handler. */
  give(reason: unknown): void {
    this.over = true
    this.reason = reason
    this.controller?.abort(reason)
  }
}

/** The handlers of one consumer. @internal */
export class Workers {
  readonly #plan: Plan
  readonly #subscription: Subscription
  readonly #id: number
  /** Handlers run in this asynchronous context, each in its own copy. */
  readonly #context: AsyncResource
  readonly #most: number
  readonly #limit: number | null
  /** Whether the kinds of an error decide. Asked once, because every failure needs it. */
  readonly #hasRules: boolean
  /** Attempts that must be told of the end, because they have a signal or a timer. */
  readonly #watched = new Set<Attempt>()
  /** Set when the subscription has ended: the results of running handlers no longer matter. */
  gone: ClosedError | undefined

  #ready: Message[] = []
  #next = 0
  /** Whose handler tells how many messages to take. */
  #sample: Message | undefined

  #running = 0
  #begun = 0
  #turnAt = 0
  #listening = false
  #pumping = false
  #yielding = false
  #unreadable = false
  /** No attempt may begin any more. */
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

  constructor(plan: Plan, subscription: Subscription, id: number, context: AsyncResource) {
    this.#plan = plan
    this.#context = context
    this.#subscription = subscription
    this.#id = id
    this.#most = plan.native.concurrency
    this.#limit = plan.native.handlerTimeout
    this.#hasRules = plan.native.hasRules
  }

  start(): void {
    this.arrived()
  }

  /** Takes no more messages; running handlers may finish. */
  close(): void {
    this.#closing = true
    this.#subscription.close()
    this.#returnTheUnstarted()
  }

  /** Ends now. */
  stop(): void {
    this.flush()
    this.#closing = this.#stopped = true
    this.#subscription.close() // or they would come again at once
    this.#returnTheUnstarted()
    this.#subscription.abandon()
  }

  /** The subscription has ended: aborts the signals of running handlers, and clears all timers. */
  ended(): void {
    this.#closing = this.#stopped = true
    this.gone ??= new ClosedError(`the consumer of ${this.#plan.queue} was closed`)
    for (const attempt of this.#watched) {
      clearTimeout(attempt.timer)
      attempt.give(this.gone)
    }
    this.#watched.clear()
  }

  /** Registers an attempt that must be told of the end. */
  watch(attempt: Attempt): void {
    this.#watched.add(attempt)
  }

  /** There is something to look at. */
  arrived(): void {
    this.#listening = false
    this.#turn()
    this.#pump()
  }

  /** Passes the ends of attempts to the core. */
  flush(): void {
    if (this.#count === 0 && this.#others.length === 0) return
    const count = this.#count
    const others = this.#others.length === 0 ? null : this.#others.done()
    this.#count = 0
    try {
      this.#subscription.settle(this.#handled, count, others)
    } finally {
      this.#others.clear()
    }
  }

  /** Looks for messages, and returns whether there are some. If not, the bridge says when to look again. */
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
    // There are no messages until the bridge says so, and this is called after every handler.
    if (this.#listening) return undefined
    const batch = this.#subscription.take(this.#sample === undefined)
    if (batch === null) return undefined
    this.#ready = this.#read(batch)
    this.#next = 1
    const first = this.#ready[0]
    this.#sample ??= first
    return first
  }

  /** The messages of a batch. After an error here they are requeued, because nobody else knows them. */
  #read(batch: Batch): Message[] {
    try {
      return messages(this.#plan.queue, batch)
    } catch (error) {
      this.#unreadable = true
      this.#subscription.giveBack(Float64Array.from(tokens(batch)))
      throw error
    }
  }

  /** Starts as many attempts as may run. */
  #pump(): void {
    if (this.#pumping || this.#yielding || this.#running >= this.#most) return
    this.#pumping = true
    let through = false
    try {
      this.#context.runInAsyncScope(this.#work, this)
      through = true
    } finally {
      this.#pumping = false
      // A handler of uncaught errors may keep the process alive; the messages must still be handled then.
      if (!through) this.#pumpLater()
    }
  }

  /** Gives the event loop its turn. */
  #pumpLater(): void {
    this.#yielding = true
    const goOn = (): void => {
      this.#yielding = this.#unreadable = false
      this.#turn()
      this.#pump()
    }
    if (this.#unreadable) setTimeout(goOn, FAULT_PAUSE)
    else setImmediate(goOn)
  }

  #work(): void {
    while (!this.#closing && this.#running < this.#most) {
      if (this.#begun >= STRETCH || (this.#begun > 0 && performance.now() - this.#turnAt > TURN)) {
        this.#pumpLater()
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
    const attempt = new Attempt(this)
    let returned: unknown
    let result: Promise<unknown> | undefined
    try {
      returned = new AsyncResource('RetryRmqHandler').runInAsyncScope(this.#plan.handler, undefined, message, attempt)
      if (isThenable(returned)) result = Promise.resolve(returned)
    } catch (error) {
      this.#end(attempt)
      this.#failed(message, error)
      return
    }
    // Not in the same `try`: an error from here on is not a failure of the handler.
    if (result === undefined) {
      this.#end(attempt)
      this.#returned(message, returned)
      return
    }
    this.#running++
    if (this.#limit !== null) {
      attempt.timer = timer(this.#limit, () => this.#late(message, attempt))
      this.#watched.add(attempt)
    }
    result.then(
      (value) => {
        if (attempt.over || this.#stopped) return
        this.#end(attempt)
        this.#running--
        this.#returned(message, value)
        this.#pump()
      },
      (error: unknown) => {
        if (attempt.over || this.#stopped) return
        this.#end(attempt)
        this.#running--
        this.#failed(message, error)
        this.#pump()
      },
    )
  }

  #end(attempt: Attempt): void {
    attempt.over = true
    if (attempt.timer === undefined && attempt.controller === undefined) return
    clearTimeout(attempt.timer)
    this.#watched.delete(attempt)
  }

  #late(message: Message, attempt: Attempt): void {
    this.#end(attempt)
    this.#running--
    const { end, reason } = timedOut(this.#limit ?? 0)
    this.#settle(message, end)
    attempt.give(reason)
    this.#pump()
  }

  #returned(message: Message, value: unknown): void {
    // A signal that was returned and not thrown: acknowledging would be the opposite of what was meant.
    if (isSignal(value)) return this.#failed(message, value)
    const error = value === undefined ? undefined : undone(value)
    if (error !== undefined) return this.#failed(message, error)
    if (message === this.#sample) this.#sample = undefined
    this.#handled[this.#count++] = tokenOf(message)
    if (this.#count >= ACKS) this.flush()
    else this.#flushSoon()
  }

  #failed(message: Message, error: unknown): void {
    const parks = mayPark(message)
    const end = judged(error, this.#plan.fatal, { kinds: this.#hasRules, stack: parks })
    this.#settle(message, end)
    // The core logs what failed and what follows; only JavaScript has the stack.
    if (end.stack !== undefined) log('debug', `${escaped(this.#plan.queue)}: the stack of ${name(message)}: ${end.stack}`)
  }

  #settle(message: Message, end: End): void {
    if (message === this.#sample) this.#sample = undefined
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

/** For the log. */
function name(message: Message): string {
  const id = message.messageId
  return `attempt ${message.attempt} of ${id === undefined ? 'a message without id' : `message ${escaped(id)}`}`
}
