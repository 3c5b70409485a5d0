/** Observables, of whatever version of RxJS the application has. */

import type { RetryRmqContext } from './context.js'

interface Observable {
  subscribe(observer: { next(value: unknown): void; error(error: unknown): void; complete(): void }): { unsubscribe(): void }
}

function isObservable(value: unknown): value is Observable {
  if (typeof value !== 'object' || value === null) return false
  const { subscribe, pipe } = value as { subscribe?: unknown; pipe?: unknown }
  return typeof subscribe === 'function' && typeof pipe === 'function'
}

/** The last value of an Observable when it completes, `undefined` if it has none; other values as they are. @internal */
export function settled(value: unknown, context: RetryRmqContext | undefined): unknown {
  if (!isObservable(value)) return value
  const signal = context?.signal
  if (signal?.aborted === true) return Promise.reject(signal.reason as Error) // its work must not begin any more
  return new Promise((resolve, reject) => {
    let last: unknown
    let stop = (): void => {}
    const forget = (): void => signal?.removeEventListener('abort', stop)
    const subscription = value.subscribe({
      next: (value) => void (last = value),
      error: (error) => (forget(), reject(error as Error)),
      complete: () => (forget(), resolve(last)),
    })
    stop = (): void => {
      subscription.unsubscribe()
      reject(signal?.reason as Error)
    }
    signal?.addEventListener('abort', stop, { once: true })
  })
}
