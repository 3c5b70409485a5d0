/**
 * Runs handlers. `Unit` is what a handler gets: a message (`singles.ts`), or an array of messages (`batches.ts`). What they have in common is
 * here: when a handler may begin, and how its call ends.
 */

import type { AsyncResource } from 'node:async_hooks'

import { Attempt } from './attempt.js'
import { bridge } from './bridge.js'
import { timer, written } from './duration.js'
import { ClosedError } from './errors.js'
import { escaped, log } from './log.js'
import { type Message, messages, tokens } from './message.js'
import type { Batch, Subscription } from './native.js'
import type { Plan } from './options.js'
import { type End, isThenable, judged, timedOut } from './outcome.js'
import { Settlements } from './settlements.js'
import { clearTimeout, now, setImmediate, setTimeout } from './timers.js'

/** After this number of calls, or of milliseconds, the event loop gets its turn. */
const STRETCH = 64
const TURN = 4
/** How many milliseconds after its handler timeout an attempt ends only because something blocked the event loop. */
const LAG = 100
const ADVICE = 'the attempt has failed; move what blocks to a worker thread'
/** Whether it was said in this turn of the event loop that it was blocked: all attempts whose time is over end in the same one. */
let hasWarned = false
/** How many milliseconds it pauses after a batch that cannot be read: it comes again at once. */
const FAULT_PAUSE = 500

/** What a line of the log is about. @internal */
export interface Named {
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
  readonly #most: number
  readonly #limit: number | null
  /** Whether the kinds of an error decide. Asked once, because every failure needs it. */
  readonly #hasRules: boolean
  /** Attempts that must be told of the end, because they have a signal or a timer. */
  readonly #watched = new Set<Attempt>()
  /** Set when the subscription has ended: the results of running handlers no longer matter. */
  gone: ClosedError | undefined

  #running = 0
  #begun = 0
  #turnAt = 0
  /** There are no messages until the bridge says so. */
  protected listening = false
  #pumping = false
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
    this.#most = plan.native.concurrency
    this.#limit = plan.native.handlerTimeout
    this.#hasRules = plan.native.hasRules
  }

  /** What the next handler gets; `undefined` if there is nothing now. */
  protected abstract take(): Unit | undefined
  /** Gives back what was taken and no handler has begun with. */
  protected abstract returnTheUnstarted(): void
  /** The attempt ends with what its handler returned. */
  protected abstract returned(unit: Unit, value: unknown): void
  /** The attempt ends with what its handler threw. */
  protected abstract failed(unit: Unit, error: unknown): void
  /** The attempt ends like this. */
  protected abstract settle(unit: Unit, end: End): void
  /** For a line of the log: its name, and its fields. */
  protected abstract named(unit: Unit): Named

  start(): void {
    this.arrived()
  }

  /** Takes no more messages; running handlers may finish. */
  close(): void {
    this.#closing = true
    this.subscription.close()
    this.returnTheUnstarted()
  }

  /** Ends now. */
  stop(): void {
    this.settlements.flush()
    this.#closing = this.#stopped = true
    this.subscription.close() // or they would come again at once
    this.returnTheUnstarted()
    this.subscription.abandon()
  }

  /** The subscription has ended: aborts the signals of running handlers, and clears all timers. */
  ended(): void {
    this.#closing = this.#stopped = true
    this.gone ??= new ClosedError(`the consumer of ${this.plan.queue} was closed`)
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
    this.listening = false
    this.#turn()
    this.#pump()
  }

  /** Looks for messages, and returns whether there are some. If not, the bridge says when to look again. */
  #listen(): boolean {
    if (this.listening || this.#stopped) return false
    const arrivals = this.subscription.listen(bridge().native, this.#id)
    this.listening = arrivals !== 'some'
    return !this.listening
  }

  #turn(): void {
    this.#begun = 0
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
      if (this.#begun >= STRETCH || (this.#begun > 0 && now() - this.#turnAt > TURN)) {
        this.#pumpLater()
        break
      }
      const unit = this.take()
      if (unit === undefined) {
        if (this.#listen()) continue
        break
      }
      this.#begun++
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
      this.#watched.add(attempt)
    }
    result.then(
      (value) => {
        attempt.destroy()
        if (attempt.over || this.#stopped) return
        this.#end(attempt)
        this.#running--
        if (!this.#isLate(unit, attempt)) this.returned(unit, value)
        this.#pump()
      },
      (error: unknown) => {
        attempt.destroy()
        if (attempt.over || this.#stopped) return
        this.#end(attempt)
        this.#running--
        if (!this.#isLate(unit, attempt)) this.failed(unit, error)
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

  #late(unit: Unit, attempt: Attempt): void {
    this.#end(attempt)
    this.#running--
    this.#timedOut(unit, attempt)
    this.#pump()
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
    if (late >= LAG && !hasWarned) {
      hasWarned = true
      setImmediate(() => void (hasWarned = false))
      const [queue, time, more] = [escaped(this.plan.queue), written(limit), written(Math.round(late))]
      const { name, fields } = this.named(unit)
      log('warn', `${queue}: the event loop was blocked for ${more} when the handler timeout of ${time} of ${name} had passed: ${ADVICE}`, fields)
    }
    const { end, reason } = timedOut(limit)
    this.settle(unit, end)
    attempt.give(reason)
  }

  /** How an attempt ends that threw. */
  protected judged(error: unknown, stack: boolean): End {
    return judged(error, this.plan.fatal, { kinds: this.#hasRules, stack })
  }

  /** The core logs what failed and what follows; only JavaScript has the stack. */
  protected logStack({ error, type, stack }: End, unit: Unit): void {
    if (stack === undefined) return
    const { name, fields } = this.named(unit)
    const more = { ...fields, errorType: type || undefined, error, stack }
    log('debug', `${escaped(this.plan.queue)}: the stack of ${name}`, more, `: ${stack}`)
  }
}

/** The attempt at a message, for the log. @internal */
export function named({ queue, messageId, attempt }: Message): Named {
  const name = `attempt ${attempt} of ${messageId === undefined ? 'a message without id' : `message ${escaped(messageId)}`}`
  return { name, fields: { queue, messageId, attempt } }
}
