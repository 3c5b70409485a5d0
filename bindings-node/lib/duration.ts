/** Durations: milliseconds, or a string such as `"5s"`. */

import { InvalidOptionError, InvalidTypeError, callNative, kind } from './errors.js'
import { native } from './native.js'
import { setTimeout } from './timers.js'

/** Milliseconds, or a string such as `"250ms"`, `"1s"`, `"5m"` or `"1h30m"`. */
export type Duration = number | string

/** A thousand years, the core's limit for texts. Longer durations are cut to it. */
const LONGEST = 3.2e13

/** The duration in milliseconds, at most the longest one. @internal */
export function bounded(ms: number): number {
  return Math.min(ms, LONGEST)
}

/** The duration in milliseconds. Throws with the name of the option. @internal */
export function milliseconds(value: Duration, option: string): number {
  if (typeof value === 'string') return callNative(() => native.parseDuration(value), option)
  if (typeof value !== 'number') {
    throw new InvalidTypeError(
      `\`${option}\` must be a number of milliseconds or a string such as '5s', not ${kind(value)}`,
    )
  }
  if (!Number.isFinite(value) || value < 0) {
    throw new InvalidOptionError(`\`${option}\` cannot be ${value} ms; a duration is at least 0`)
  }
  return bounded(value)
}

/** The duration as text, for a policy. @internal */
export function text(value: Duration, option: string): string {
  return `${Math.round(milliseconds(value, option))}ms`
}

/** The longest timer of Node, 24.8 days. A longer one would fire at once. */
const LONGEST_TIMER = 2 ** 31 - 1

/** A timer for any duration, at most the longest one. @internal */
export function timer(ms: number, then: () => void): NodeJS.Timeout {
  return setTimeout(then, Math.min(ms, LONGEST_TIMER))
}

/** Milliseconds as text, as the core and every other language write it: equal failures have equal texts. @internal */
export function written(ms: number): string {
  return native.durationText(ms)
}
