/** Checks what a handler returned. It is ignored, unless it is work that would never run. */

import { types } from 'node:util'

import { isThenable } from './outcome.js'

/** How many elements of a returned array are checked. */
const MOST = 1000

/** Why the message must not be acknowledged; `undefined` if it may. Promises were awaited before. @internal */
export function unfinishedWork(value: unknown, most = MOST): TypeError | undefined {
  if (typeof value === 'function') {
    const name = nameOf(value)
    return new TypeError(
      `the handler returned ${name === '' ? 'a function' : `the function \`${name}\``}, which nobody calls; call it before returning`,
    )
  }
  if (typeof value !== 'object' || value === null) return undefined
  if (types.isGeneratorObject(value) || isLazy(value)) {
    return new TypeError(
      'the handler returned a generator, which nobody runs; do the work before returning, in a loop over it for example',
    )
  }
  return Array.isArray(value) ? amongAll(value, most) : undefined
}

/**
 * Whether a value does its work only while it is iterated over: the result of `iterator.map(…)`, or a generator that was compiled for an
 * engine without generators. Iterators over existing values have no `return`.
 */
function isLazy(value: object): boolean {
  try {
    const { next, return: end } = value as { next?: unknown; return?: unknown }
    if (typeof next !== 'function' || typeof end !== 'function') return false
    return Symbol.iterator in value || Symbol.asyncIterator in value
  } catch {
    return false // a proxy or a getter that throws
  }
}

function amongAll(values: unknown[], most: number): TypeError | undefined {
  let found = false
  try {
    for (const value of values.slice(0, most)) {
      if (!isThenable(value)) continue
      found = true
      // The attempt fails anyway; an unhandled rejection would end the process.
      if (types.isPromise(value)) value.catch(() => {})
    }
  } catch {
    // a proxy or a getter that throws
  }
  if (!found) return undefined
  return new TypeError('the handler returned an array with a promise, which nobody awaits; write `await Promise.all(…)`')
}

function nameOf(value: object): string {
  try {
    const { name } = value as { name?: unknown }
    return typeof name === 'string' ? name.slice(0, 100) : ''
  } catch {
    return ''
  }
}
