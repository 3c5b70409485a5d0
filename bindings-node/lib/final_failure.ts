/** Whether a failure is the last one of its message: decided by the core, without a broker. */

import { type Message, messages, tokenOf } from './message.js'
import { native } from './native.js'
import { type ConsumerOptions, type Plan, plan } from './options.js'
import { type End, classify, timeoutEnd, writeEnd } from './outcome.js'
import { outgoing } from './publish.js'
import type { Headers } from './values.js'
import { Writer } from './byte_writer.js'

/** What the broker writes is about crashes, and not about the policy. */
const BROKER_HEADERS = ['x-death', 'x-delivery-count', 'x-acquired-count']

/** Enough to draw the longest and the shortest of the three delays of a jitter; the draws are the same in every simulation. */
const SIMULATED_COPIES = 16

/**
 * Tells whether a message would be parked, dropped or rejected if its attempt failed like this. The policy, the rules, the age of the message and
 * the error decide. Where that is not known, as with the strategy `service`, the answer is no. @internal
 */
export class FinalFailureCheck {
  readonly #plan: Plan
  readonly #isServiceDecision: boolean

  constructor(options: ConsumerOptions) {
    // How a message waits does not decide whether it does.
    this.#plan = plan({ ...options, strategy: undefined, workQueue: undefined }, () => {})
    this.#isServiceDecision = options.strategy === 'service'
  }

  /** How long an attempt may take, in milliseconds. */
  get limit(): number {
    return this.#plan.native.handlerTimeout ?? Infinity
  }

  /** Whether it is over with this message if its handler has thrown this. */
  isFinal(message: Message, thrown: unknown): boolean {
    return this.#isFinalEnd(message, classify(thrown, this.#plan.fatal, { kinds: true, stack: false }))
  }

  /** Whether it is over with this message if its attempt has taken too long. */
  isFinalOnTimeout(message: Message): boolean {
    return this.#isFinalEnd(message, timeoutEnd(this.limit).end)
  }

  #isFinalEnd(message: Message, end: End): boolean {
    if (this.#isServiceDecision) return false
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
    for (const name of BROKER_HEADERS) delete headers[name]
    const { timestamp } = message.properties
    const simulation = new native.Simulation(this.#plan.native)
    for (let left = SIMULATED_COPIES; left > 0; left--) {
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
