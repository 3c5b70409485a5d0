// Three ways to choose how long a failed message waits: the policy, a rule, or the handler itself.

import { connect, defer, exponential, fixed, retryAfter, rule } from 'retryrmq'

class TimeoutError extends Error {}

const queue = 'example.delays'
const left = new Set(['flaky', 'timeout', 'busy', 'early'])
const rmq = await connect()

const consumer = await rmq.consume(
  {
    queue,
    dlx: true,
    retry: exponential('250ms', { factor: 2, max: '1m', retries: 6 }),
    rules: [rule({ error: TimeoutError }, fixed('1s', { retries: 3 }))],
  },
  async (msg) => {
    const name = msg.messageId ?? ''
    if (name === 'flaky' && msg.attempt <= 3) throw new Error('the database is restarting') // the policy: 0.25, 0.5 and 1 s
    if (name === 'timeout' && msg.attempt === 1) throw new TimeoutError('no answer') // the rule: 1 s
    if (name === 'busy' && msg.attempt === 1) throw retryAfter('1500ms', 'the partner asks for 1.5 s')
    if (name === 'early' && !('x-retry-deferrals' in msg.headers)) throw defer('500ms') // not an error: uses up no retry
    console.log(`${name} is done at attempt ${msg.attempt}`)
    left.delete(name)
    if (left.size === 0) void rmq.close()
  },
)
consumer.on('retried', ({ messageId, delay, error }) => console.log(`${messageId} waits ${delay / 1000} s: ${error}`))
consumer.on('deferred', ({ messageId, delay }) => console.log(`${messageId} is deferred for ${delay / 1000} s`))

await Promise.all([...left].map((messageId) => rmq.publish(queue, '', { messageId })))
await rmq.run()
