/** Handlers that get several messages at once. The native half forms the batches; each message ends by itself. */

import type { AsyncResource } from 'node:async_hooks'

import { batchResults } from './batch_results.js'
import { type Message, mayPark, tokenOf } from './message.js'
import type { Subscription } from './native.js'
import type { Plan } from './options.js'
import type { End } from './outcome.js'
import { type LogSubject, Workers, logSubject } from './workers.js'

/** @internal */
export class BatchWorkers extends Workers<Message[]> {
  constructor(plan: Plan, subscription: Subscription, id: number, context: AsyncResource) {
    super(plan, subscription, id, context, plan.native.batch ?? 1)
  }

  protected take(): Message[] | undefined {
    if (this.isWaiting) return undefined
    const batch = this.subscription.take(true)
    return batch === null ? undefined : this.read(batch)
  }

  protected requeueUnstarted(): void {
    // A handler begins with what is taken at once.
  }

  protected returned(messages: Message[], value: unknown): void {
    const answer = batchResults(value, messages.length)
    if (answer !== undefined && 'all' in answer) return this.failed(messages, answer.all.error)
    messages.forEach((message, index) => {
      const failure = answer?.each[index]
      if (failure === undefined) return this.settlements.acknowledge(tokenOf(message))
      const end = this.classify(failure.error, mayPark(message))
      this.settlements.end(tokenOf(message), end)
      this.logStack(end, [message])
    })
  }

  protected failed(messages: Message[], error: unknown): void {
    const end = this.classify(error, messages.some(mayPark))
    this.settle(messages, end)
    this.logStack(end, messages)
  }

  protected settle(messages: Message[], end: End): void {
    // Of a message that is retried, nobody reads the stack.
    const short = end.what === 'retry' ? { ...end, stack: undefined } : end
    for (const message of messages) this.settlements.end(tokenOf(message), mayPark(message) ? end : short)
  }

  protected logSubject(messages: Message[]): LogSubject {
    const first = logSubject(messages[0] as Message)
    if (messages.length === 1) return first
    return { name: `a batch of ${messages.length} messages`, fields: { queue: this.plan.queue, count: messages.length } }
  }
}
