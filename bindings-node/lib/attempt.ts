/** One call of a handler. */

import { AsyncResource } from 'node:async_hooks'

import { MANUAL_DESTROY } from './notifications.js'
import type { ClosedError } from './errors.js'
import type { Context } from './options.js'

/** Who tells an attempt that its consumer has ended. @internal */
export interface EndNotifier {
  readonly endedWith: ClosedError | undefined
  observeEnd(attempt: Attempt): void
}

/** The context of one call of a handler: plain fields, and a signal that is made on first use. @internal */
export class Attempt implements Context {
  readonly workers: EndNotifier
  /** The handler runs in it. */
  readonly context = new AsyncResource('RetryRmqHandler', MANUAL_DESTROY)
  controller: AbortController | undefined = undefined
  timer: NodeJS.Timeout | undefined = undefined
  /** When it began, if it has a time limit. */
  began = 0
  /** The attempt has ended; what the handler still does changes nothing. */
  over = false
  /** Why it ended without its handler. */
  reason: unknown = undefined
  #destroyed = false

  constructor(workers: EndNotifier) {
    this.workers = workers
  }

  get signal(): AbortSignal {
    if (this.controller === undefined) {
      this.controller = new AbortController()
      const reason = this.over ? this.reason : this.workers.endedWith
      if (reason !== undefined) this.controller.abort(reason)
      else if (!this.over) this.workers.observeEnd(this)
    }
    return this.controller.signal
  }

  /** Nothing more runs in its context, or nobody waits for that. */
  destroy(): void {
    if (this.#destroyed) return
    this.#destroyed = true
    this.context.emitDestroy()
  }

  /** Ends the attempt without its handler. */
  endWith(reason: unknown): void {
    this.destroy() // the handler may never end
    this.over = true
    this.reason = reason
    this.controller?.abort(reason)
  }
}
