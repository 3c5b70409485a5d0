/** Whether a failure is the last one of its message: decided by the core, without a broker. */

import { type Message, messages, tokenOf } from './message.js'
import { native } from './native.js'
import { type ConsumerOptions, type Plan, plan } from './options.js'
import { type End, judged, timedOut, writeEnd } from './outcome.js'
import { outgoing } from './publish.js'
import type { Headers } from './values.js'
import { Writer } from './wire.js'

/** What the broker writes is about crashes, and not about the policy. */
const OF_THE_BROKER = ['x-death', 'x-delivery-count', 'x-acquired-count']

/** Enough to draw the longest and the shortest of the three delays of a jitter; the draws are the same in every simulation. */
const COPIES = 16

/**
 * Tells whether a message would be parked, dropped or rejected if its attempt failed like this. The policy, the rules, the age of the message and
 * the error decide. Where that is not known, as with the strategy `service`, the answer is no. @internal
 */
export class Forecast {
  readonly #plan: Plan
  readonly #isElsewhere: boolean

  constructor(options: ConsumerOptions) {
    // How a message waits does not decide whether it does.
    this.#plan = plan({ ...options, strategy: undefined, workQueue: undefined }, () => {})
    this.#isElsewhere = options.strategy === 'service'
  }

  /** How long an attempt may take, in milliseconds. */
  get limit(): number {
    return this.#plan.native.handlerTimeout ?? Infinity
  }

  /** Whether it is over with this message if its handler has thrown this. */
  isOver(message: Message, thrown: unknown): boolean {
    return this.#isLast(message, judged(thrown, this.#plan.fatal, { kinds: true, stack: false }))
  }

  /** Whether it is over with this message if its attempt has taken too long. */
  isOverByTime(message: Message): boolean {
    return this.#isLast(message, timedOut(this.limit).end)
  }

  #isLast(message: Message, end: End): boolean {
    if (this.#isElsewhere) return false
    if (message.mended !== undefined && end.what !== 'defer') return true
    try {
      for (const what of this.#simulated(message, end)) {
        if (!['parked', 'dropped', 'rejected'].includes(what)) return false
      }
      return true
    } catch {
      return false // a message that cannot be published as it came
    }
  }

  /** What becomes of copies of the message, each with a jitter of its own: after a short delay it may not be too old yet. */
  *#simulated(message: Message, end: End): Iterable<string> {
    const headers: Headers = { ...message.headers, 'x-retry-count': message.retries }
    for (const name of OF_THE_BROKER) delete headers[name]
    const { timestamp } = message.properties
    const simulation = new native.Simulation(this.#plan.native)
    for (let left = COPIES; left > 0; left--) {
      simulation.publish(outgoing(message.routingKey, '', { headers, ...(timestamp instanceof Date ? { timestamp } : {}) }))
      const batch = simulation.next()
      const copy = batch === null ? undefined : messages(message.queue, batch)[0]
      if (copy === undefined) return yield 'gone'
      const out = new Writer()
      writeEnd(out, tokenOf(copy), end)
      yield simulation.settle(out.done()).what
    }
  }
}
