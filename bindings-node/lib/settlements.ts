/** The ends of attempts on their way to the core: collected, and passed on in one call at the end of the event loop's turn. */

import type { Subscription } from './native.js'
import { type End, writeEnd } from './outcome.js'
import { setImmediate } from './timers.js'
import { Writer } from './byte_writer.js'

/** The most bytes of other outcomes passed to the core at once. */
const MAX_BYTES = 32_768

/** @internal */
export class Settlements {
  readonly #subscription: Subscription
  readonly #handled: Float64Array
  #count = 0
  readonly #others = new Writer(4096)
  #flushing = false
  readonly #flush = (): void => {
    this.#flushing = false
    this.flush()
  }

  /** At most `acks` acknowledgements are passed to the core at once. */
  constructor(subscription: Subscription, acks: number) {
    this.#subscription = subscription
    this.#handled = new Float64Array(acks)
  }

  /** The message with this token is handled. */
  acknowledge(token: number): void {
    this.#handled[this.#count++] = token
    if (this.#count >= this.#handled.length) this.flush()
    else this.#flushSoon()
  }

  /** The attempt at the message with this token has ended like this. */
  end(token: number, end: End): void {
    writeEnd(this.#others, token, end)
    if (this.#others.length >= MAX_BYTES) this.flush()
    else this.#flushSoon()
  }

  /** Passes them to the core now. */
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

  #flushSoon(): void {
    if (this.#flushing) return
    this.#flushing = true
    setImmediate(this.#flush)
  }
}
