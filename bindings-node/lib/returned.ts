/** What a handler returned: it does not matter, unless it is work that nobody would ever do. */

import { types } from 'node:util'

import { isThenable } from './outcome.js'

/** As far is looked into an array of results. */
const MOST = 1000

/** Why acknowledging would be wrong; `undefined` when it is right. Promises were awaited before. @internal */
export function undone(value: unknown): TypeError | undefined {
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
  return Array.isArray(value) ? amongAll(value) : undefined
}

/**
 * Whether it does its work only while somebody iterates over it: a generator whose function was compiled for an engine without
 * generators, or what `iterator.map(…)` returns. Iterators over what is there already have no `return`.
 */
function isLazy(value: object): boolean {
  try {
    const { next, return: end } = value as { next?: unknown; return?: unknown }
    if (typeof next !== 'function' || typeof end !== 'function') return false
    return Symbol.iterator in value || Symbol.asyncIterator in value
  } catch {
    return false // a proxy, or a getter, that does not want to be looked at
  }
}

function amongAll(values: unknown[]): TypeError | undefined {
  let found = false
  try {
    for (const value of values.slice(0, MOST)) {
      if (!isThenable(value)) continue
      found = true
      // The attempt fails already; by itself, its rejection would end the process.
      if (types.isPromise(value)) value.catch(() => {})
    }
  } catch {
    // a proxy, or a getter, that does not want to be looked at
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
