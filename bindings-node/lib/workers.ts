/**
 * Runs handlers. `Unit` is what a handler gets: a message (`single_workers.ts`), or an array of messages (`batch_workers.ts`). What they have in common is
 * here: when a handler may begin, and how its call ends.
 */

import type { AsyncResource } from 'node:async_hooks'

import { Attempt } from './attempt.js'
import { dispatcher } from './notifications.js'
import { timer, written } from './duration.js'
import { ClosedError } from './errors.js'
import { escaped, log } from './log.js'
import { type Message, messages, tokens } from './message.js'
import type { Batch, Subscription } from './native.js'
import type { Plan } from './options.js'
import { type End, classify, isThenable, timeoutEnd } from './outcome.js'
import { Settlements } from './settlements.js'
import { clearTimeout, now, setImmediate, setTimeout } from './timers.js'

/** After this number of calls, or of milliseconds, the event loop gets its turn. */
const MAX_IN_A_ROW = 64
const MAX_TURN_MS = 4
/** How many milliseconds after its handler timeout an attempt ends only because something blocked the event loop. */
const BLOCKED_AFTER_MS = 100
const BLOCKED_ADVICE = 'the attempt has failed; move what blocks to a worker thread'
/** Whether it was said in this turn of the event loop that it was blocked: all attempts whose time is over end in the same one. */
let hasWarned = false
/** How many milliseconds it pauses after a batch that cannot be read: it comes again at once. */
const FAULT_PAUSE = 500

/** What a line of the log is about. @internal */
export interface LogSubject {
  name: string
  fields: { [name: string]: string | number | undefined }
}

/** The handlers of one consumer. @internal */
export abstract class Workers<Unit> {
  protected readonly plan: Plan
  protected readonly subscription: Subscription
  protected readonly settlements: Settlements
  readonly #handler: (unit: Unit, attempt: Attempt) => unknown
  readonly #id: number
  /** Handlers run in this asynchronous context, each in its own copy. */
  readonly #context: AsyncResource
  readonly #concurrency: number
  readonly #limit: number | null
  /** Whether the kinds of an error decide. Asked once, because every failure needs it. */
  readonly #hasRules: boolean
  /** Attempts that must be told of the end, because they have a signal or a timer. */
  readonly #endObservers = new Set<Attempt>()
  /** Set when the subscription has ended: the results of running handlers no longer matter. */
  endedWith: ClosedError | undefined

  #running = 0
  #startedInTurn = 0
  #turnAt = 0
  /** There are no messages until a notification says so. */
  protected isWaiting = false
  #starting = false
  #yielding = false
  #unreadable = false
  /** No attempt may begin any more. */
  #closing = false
  #stopped = false

  constructor(plan: Plan, subscription: Subscription, id: number, context: AsyncResource, acks: number) {
    this.plan = plan
    this.subscription = subscription
    this.settlements = new Settlements(subscription, acks)
    this.#handler = plan.handler as (unit: Unit, attempt: Attempt) => unknown
    this.#context = context
    this.#id = id
    this.#concurrency = plan.native.concurrency
    this.#limit = plan.native.handlerTimeout
    this.#hasRules = plan.native.hasRules
  }

  /** What the next handler gets; `undefined` if there is nothing now. */
  protected abstract take(): Unit | undefined
  /** Gives back what was taken and no handler has begun with. */
  protected abstract requeueUnstarted(): void
  /** The attempt ends with what its handler returned. */
  protected abstract returned(unit: Unit, value: unknown): void
  /** The attempt ends with what its handler threw. */
  protected abstract failed(unit: Unit, error: unknown): void
  /** The attempt ends like this. */
  protected abstract settle(unit: Unit, end: End): void
  /** For a line of the log: its name, and its fields. */
  protected abstract logSubject(unit: Unit): LogSubject

  start(): void {
    this.arrived()
  }

  /** Takes no more messages; running handlers may finish. */
  close(): void {
    this.#closing = true
    this.subscription.close()
    this.requeueUnstarted()
  }

  /** Ends now. */
  stop(): void {
    this.settlements.flush()
    this.#closing = this.#stopped = true
    this.subscription.close() // or they would come again at once
    this.requeueUnstarted()
    this.subscription.abandon()
  }

  /** The subscription has ended: aborts the signals of running handlers, and clears all timers. */
  ended(): void {
    this.#closing = this.#stopped = true
    this.endedWith ??= new ClosedError(`the consumer of ${this.plan.queue} was closed`)
    for (const attempt of this.#endObservers) {
      clearTimeout(attempt.timer)
      attempt.endWith(this.endedWith)
    }
    this.#endObservers.clear()
  }

  /** Registers an attempt that must be told of the end. */
  observeEnd(attempt: Attempt): void {
    this.#endObservers.add(attempt)
  }

  /** There is something to look at. */
  arrived(): void {
    this.isWaiting = false
    this.#turn()
    this.#startAttempts()
  }

  /** Looks for messages, and returns whether there are some. If not, a notification says when to look again. */
  #listen(): boolean {
    if (this.isWaiting || this.#stopped) return false
    const arrivals = this.subscription.listen(dispatcher().native, this.#id)
    this.isWaiting = arrivals !== 'some'
    return !this.isWaiting
  }

  #turn(): void {
    this.#startedInTurn = 0
    this.#turnAt = now()
  }

  /** The messages of a batch. After an error here they are requeued, because nobody else knows them. */
  protected read(batch: Batch): Message[] {
    try {
      return messages(this.plan.queue, batch)
    } catch (error) {
      this.#unreadable = true
      this.subscription.giveBack(Float64Array.from(tokens(batch)))
      throw error
    }
  }

  /** Starts as many attempts as may run. */
  #startAttempts(): void {
    if (this.#starting || this.#yielding || this.#running >= this.#concurrency) return
    this.#starting = true
    let isDone = false
    try {
      this.#context.runInAsyncScope(this.#work, this)
      isDone = true
    } finally {
      this.#starting = false
      // A handler of uncaught errors may keep the process alive; the messages must still be handled then.
      if (!isDone) this.#startLater()
    }
  }

  /** Gives the event loop its turn. */
  #startLater(): void {
    this.#yielding = true
    const resume = (): void => {
      this.#yielding = this.#unreadable = false
      this.#turn()
      this.#startAttempts()
    }
    if (this.#unreadable) setTimeout(resume, FAULT_PAUSE)
    else setImmediate(resume)
  }

  #work(): void {
    while (!this.#closing && this.#running < this.#concurrency) {
      if (this.#startedInTurn >= MAX_IN_A_ROW || (this.#startedInTurn > 0 && now() - this.#turnAt > MAX_TURN_MS)) {
        this.#startLater()
        break
      }
      const unit = this.take()
      if (unit === undefined) {
        if (this.#listen()) continue
        break
      }
      this.#startedInTurn++
      this.#begin(unit)
    }
  }

  #begin(unit: Unit): void {
    const attempt = new Attempt(this)
    if (this.#limit !== null) attempt.began = now()
    let returned: unknown
    let result: Promise<unknown> | undefined
    try {
      returned = attempt.context.runInAsyncScope(this.#handler, undefined, unit, attempt)
      if (isThenable(returned)) result = Promise.resolve(returned)
      else attempt.destroy()
    } catch (error) {
      attempt.destroy()
      this.#end(attempt)
      if (!this.#isLate(unit, attempt)) this.failed(unit, error)
      return
    }
    // Not in the same `try`: an error from here on is not a failure of the handler.
    if (result === undefined) {
      this.#end(attempt)
      if (!this.#isLate(unit, attempt)) this.returned(unit, returned)
      return
    }
    this.#running++
    if (this.#limit !== null) {
      // The handler may have used up a part of its time before its first `await`.
      attempt.timer = timer(Math.max(0, this.#limit - (now() - attempt.began)), () => this.#late(unit, attempt))
      this.#endObservers.add(attempt)
    }
    result.then(
      (value) => {
        attempt.destroy()
        if (attempt.over || this.#stopped) return
        this.#end(attempt)
        this.#running--
        if (!this.#isLate(unit, attempt)) this.returned(unit, value)
        this.#startAttempts()
      },
      (error: unknown) => {
        attempt.destroy()
        if (attempt.over || this.#stopped) return
        this.#end(attempt)
        this.#running--
        if (!this.#isLate(unit, attempt)) this.failed(unit, error)
        this.#startAttempts()
      },
    )
  }

  #end(attempt: Attempt): void {
    attempt.over = true
    if (attempt.timer === undefined && attempt.controller === undefined) return
    clearTimeout(attempt.timer)
    this.#endObservers.delete(attempt)
  }

  #late(unit: Unit, attempt: Attempt): void {
    this.#end(attempt)
    this.#running--
    this.#timedOut(unit, attempt)
    this.#startAttempts()
  }

  /**
   * Whether an attempt that ends now has used up its time, which its timer cannot tell while a handler blocks the event loop. Then it is a
   * timeout, whatever the handler returned or threw.
   */
  #isLate(unit: Unit, attempt: Attempt): boolean {
    if (this.#limit === null || now() - attempt.began < this.#limit) return false
    this.#timedOut(unit, attempt)
    return true
  }

  #timedOut(unit: Unit, attempt: Attempt): void {
    const limit = this.#limit ?? 0
    const late = now() - attempt.began - limit
    if (late >= BLOCKED_AFTER_MS && !hasWarned) {
      hasWarned = true
      setImmediate(() => void (hasWarned = false))
      const [queue, time, more] = [escaped(this.plan.queue), written(limit), written(Math.round(late))]
      const { name, fields } = this.logSubject(unit)
      log('warn', `${queue}: the event loop was blocked for ${more} when the handler timeout of ${time} of ${name} had passed: ${BLOCKED_ADVICE}`, fields)
    }
    const { end, reason } = timeoutEnd(limit)
    this.settle(unit, end)
    attempt.endWith(reason)
  }

  /** How an attempt ends that threw. */
  protected classify(error: unknown, stack: boolean): End {
    return classify(error, this.plan.fatal, { kinds: this.#hasRules, stack })
  }

  /** The core logs what failed and what follows; only JavaScript has the stack. */
  protected logStack({ error, type, stack }: End, unit: Unit): void {
    if (stack === undefined) return
    const { name, fields } = this.logSubject(unit)
    const more = { ...fields, errorType: type || undefined, error, stack }
    log('debug', `${escaped(this.plan.queue)}: the stack of ${name}`, more, `: ${stack}`)
  }
}

/** The attempt at a message, for the log. @internal */
export function logSubject({ queue, messageId, attempt }: Message): LogSubject {
  const name = `attempt ${attempt} of ${messageId === undefined ? 'a message without id' : `message ${escaped(messageId)}`}`
  return { name, fields: { queue, messageId, attempt } }
}
