// Which attempts fail, and when all is done: every loop asks this, whoever wrote it. Either each message fails so often, or all attempts
// fail while a dependency is away.
//
// `fails(failed)`: whether an attempt at a message fails that has failed so often before. `place(queue, failed)`: the queue to which a
// loop by hand sends it then. `done()`: a message has succeeded. `retry` is the policy, as retryrmq takes it, and `outstanding` how many
// messages a client may hold.

import { cpu, Meter, PREFETCH, report } from './measure.mjs'

/** Messages a second, wherever they come at a rate. */
export const PER_SECOND = 100

/** Messages that a client may hold while each fails once. */
export const HELD = Number(process.env.RETRYRMQ_BENCH_OUTSTANDING || PREFETCH)

/** Each message fails `failures` times, waits `delay` ms each time, and succeeds. */
export class Failing {
  constructor(count, { failures = 1, delay = 1000, outstanding = HELD } = {}) {
    Object.assign(this, { failures, delay, outstanding, retry: `fixed(${delay}ms)` })
    this.meter = new Meter(count)
  }

  fails(failed) {
    this.meter.arrived()
    return failed < this.failures
  }

  place(queue) {
    return `${queue}.retry.${this.delay}`
  }

  done() {
    this.meter.one()
  }
}

const RETRIES = 5

/** A dependency is away from the first message on, until all have come; five retries after 1, 2, 4, 8 and 16 seconds. */
export class Outage {
  static retry = `exponential(1s, factor=2, retries=${RETRIES})`
  retry = Outage.retry
  outstanding = PREFETCH
  attempts = 0
  handled = 0
  parked = 0

  constructor(count) {
    this.count = count
  }

  fails(failed) {
    const now = performance.now()
    if (this.back === undefined) {
      this.back = now + (this.count / PER_SECOND) * 1000
      this.cpu = cpu()
    }
    if (now >= this.back) return false
    this.attempts++
    if (failed === RETRIES) this.parked++
    return true
  }

  place(queue, failed) {
    return failed < RETRIES ? `${queue}.retry.${1000 * 2 ** failed}` : `${queue}.parked`
  }

  /** The last message came as the dependency returned, so that it cannot be given up: the end is always here. */
  done() {
    this.handled++
    if (this.handled + this.parked < this.count) return
    const { attempts, parked, back, count } = this
    report({ attempts, parked, after_s: (performance.now() - back) / 1000, cpu_us: (cpu() - this.cpu) / count })
  }
}
