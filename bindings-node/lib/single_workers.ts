/** Handlers that get one message at a time. The native half decides how many messages are taken at once. */

import type { AsyncResource } from 'node:async_hooks'

import { type Message, mayPark, tokenOf } from './message.js'
import type { Subscription } from './native.js'
import type { Plan } from './options.js'
import { type End, isSignal } from './outcome.js'
import { unfinishedWork } from './result_check.js'
import { type LogSubject, Workers, logSubject } from './workers.js'

/** The most acknowledgements passed to the core at once. */
const MAX_ACKS = 32

/** @internal */
export class SingleWorkers extends Workers<Message> {
  #ready: Message[] = []
  #next = 0
  /** Whose handler tells how many messages to take. */
  #sample: Message | undefined

  constructor(plan: Plan, subscription: Subscription, id: number, context: AsyncResource) {
    super(plan, subscription, id, context, MAX_ACKS)
  }

  protected take(): Message | undefined {
    if (this.#next < this.#ready.length) return this.#ready[this.#next++]
    // This is called after every handler.
    if (this.isWaiting) return undefined
    const batch = this.subscription.take(this.#sample === undefined)
    if (batch === null) return undefined
    this.#ready = this.read(batch)
    this.#next = 1
    const first = this.#ready[0]
    this.#sample ??= first
    return first
  }

  protected requeueUnstarted(): void {
    if (this.#next < this.#ready.length) {
      this.subscription.giveBack(Float64Array.from(this.#ready.slice(this.#next), tokenOf))
    }
    this.#ready = []
    this.#next = 0
  }

  protected returned(message: Message, value: unknown): void {
    // A signal that was returned and not thrown: acknowledging would be the opposite of what was meant.
    if (isSignal(value)) return this.failed(message, value)
    const error = value === undefined ? undefined : unfinishedWork(value)
    if (error !== undefined) return this.failed(message, error)
    if (message === this.#sample) this.#sample = undefined
    this.settlements.acknowledge(tokenOf(message))
  }

  protected failed(message: Message, error: unknown): void {
    const end = this.classify(error, mayPark(message))
    this.settle(message, end)
    this.logStack(end, message)
  }

  protected settle(message: Message, end: End): void {
    if (message === this.#sample) this.#sample = undefined
    this.settlements.end(tokenOf(message), end)
  }

  protected logSubject(message: Message): LogSubject {
    return logSubject(message)
  }
}
