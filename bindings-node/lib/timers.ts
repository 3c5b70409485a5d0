/**
 * Node's own timers, as they are when the package is loaded. Fake timers, which a test installs later, replace the globals and the functions
 * of `node:timers`; no attempt would ever begin then. Jest can replace the globals before, but not the module.
 */

import { performance } from 'node:perf_hooks'
import timers from 'node:timers'

/** @internal */
export const { clearInterval, clearTimeout, setImmediate, setInterval, setTimeout } = timers
/** Milliseconds on a clock that only moves forward. @internal */
export const now: () => number = performance.now.bind(performance)
