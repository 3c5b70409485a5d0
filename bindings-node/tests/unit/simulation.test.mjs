// Handlers on a virtual clock: the real policy, rules, limits and headers.

import assert from 'node:assert/strict'
import { test } from 'node:test'

import { defer, fixed, park, retryAfter, rule, setLogger } from 'retryrmq'
import { liveObjects, simulate } from 'retryrmq/testing'

setLogger(false)
const orders = { queue: 'orders', dlx: true }

// Equal failures have one text, and so one fingerprint, in every language.
test('times in errors are written to the nanosecond, as in every language', async () => {
  const handler = () => new Promise(() => {})
  const options = { queue: 'orders', dlx: true, retry: 'fixed(1s, retries=0)', handlerTimeout: 1.5 }
  const { parked } = await simulate(options, handler, ['x'])
  assert.equal(parked[0].message.headers['x-retry-error'], 'the handler took longer than 1.5ms')
  for (const [delay, text] of [[1.5, '1.5ms'], [30_000.5, '30000.5ms'], ['1s', '1s'], [3_600_000, '1h'], [0, '0ms']]) {
    assert.equal(defer(delay).message, `deferred for ${text}`)
  }
})

test('a failing message spends its attempts and is parked', async () => {
  const result = await simulate(orders, async (msg) => msg.json(), ['not json'])
  const [parked] = result.parked
  assert.equal(parked.reason, 'exhausted')
  assert.equal(result.elapsed, 341_000)
  assert.deepEqual(
    result.attempts.map((attempt) => attempt.delay),
    [1000, 4000, 16_000, 64_000, 256_000, undefined],
  )
  assert.equal(parked.message.headers['x-retry-error-type'], 'SyntaxError')
  assert.match(parked.message.headers['x-retry-error-stack'], /SyntaxError.*\n\s+at /)
  assert.equal(parked.message.text(), 'not json')
  assert.equal(parked.message.headers['retryrmq-simulated'], undefined)
})

test('a handler sees what happened to its message', async () => {
  const seen = []
  const handle = (msg) => {
    seen.push([msg.attempt, msg.retries, msg.lastError, msg.firstFailedAt instanceof Date, msg.history.length])
    if (msg.attempt < 3) throw new Error(`attempt ${msg.attempt}`)
  }
  const result = await simulate({ ...orders, retry: fixed('1m') }, handle, [{ body: 'x', messageId: '7' }])
  assert.deepEqual(seen, [
    [1, 0, undefined, false, 0],
    [2, 1, 'attempt 1', true, 1],
    [3, 2, 'attempt 2', true, 2],
  ])
  assert.equal(result.acked.length, 1)
  assert.equal(result.attemptsOf(0).length, 3)
  assert.equal(result.attempts[2].message.messageId, '7')
})

test('signals choose', async () => {
  const steps = [defer('5s'), retryAfter('30s', 'busy'), retryAfter('40s', new TypeError('odd')), park('no customer')]
  const result = await simulate(
    orders,
    () => {
      throw steps.shift()
    },
    ['x'],
  )
  assert.deepEqual(
    result.attempts.map(({ became, delay, number }) => [became, delay, number]),
    [
      ['deferred', 5000, 1],
      ['retried', 30_000, 1],
      ['retried', 40_000, 2],
      ['parked', undefined, 3],
    ],
  )
  const { message, reason } = result.parked[0]
  assert.equal(reason, 'requested')
  assert.equal(message.headers['x-retry-error'], 'no customer')
  assert.deepEqual(
    message.history.map((entry) => entry.error),
    ['busy', 'odd', 'no customer'],
  )
})

test('a delay longer than any clock has is the longest there is', async () => {
  const year = 365 * 86_400_000
  const odd = retryAfter('1s')
  odd.delay = Number.NaN
  const steps = [retryAfter(1e23), defer(Number.MAX_VALUE), Object.assign(retryAfter('1s'), { delay: 1e300 }), odd]
  const handle = () => {
    const step = steps.shift()
    if (step !== undefined) throw step
  }
  const { attempts } = await simulate(orders, handle, ['x'])
  const delays = attempts.map((attempt) => attempt.delay)
  assert.deepEqual(delays, [year, year, year, 16_000, undefined])
})

test('a signal counts anywhere among the causes, and when it is returned instead of thrown', async () => {
  const wrapped = await simulate(
    orders,
    () => {
      throw new Error('outer', { cause: new Error('middle', { cause: park('inner') }) })
    },
    ['x'],
  )
  assert.deepEqual([wrapped.parked[0].reason, wrapped.parked[0].message.headers['x-retry-error']], ['requested', 'inner'])
  const returned = await simulate(orders, async () => park('returned'), ['x'])
  assert.equal(returned.parked[0].reason, 'requested')
})

test('fatal classes park at once', async () => {
  class Invalid extends Error {}
  class VeryInvalid extends Invalid {}
  const handle = () => {
    throw new VeryInvalid('no use')
  }
  for (const fatal of [Invalid, [Invalid, SyntaxError]]) {
    const result = await simulate({ ...orders, fatal }, handle, ['x'])
    assert.equal(result.attempts.length, 1)
    assert.equal(result.parked[0].reason, 'fatal')
    assert.equal(result.parked[0].message.headers['x-retry-error-type'], 'VeryInvalid')
  }
})

test('rules look at classes, their bases, codes, headers and routing keys', async () => {
  class Slow extends Error {}
  class VerySlow extends Slow {}
  const rules = [
    rule({ error: Slow }, fixed('2s')),
    rule({ error: 'ECONN*' }, fixed('3s')),
    rule({ headers: { kind: 'inv*' } }, 'fixed(4s)'),
    'routing_key=eu.# => fixed(5s)',
  ]
  const first = async (error, input = 'x') => {
    const handle = () => {
      throw error
    }
    return (await simulate({ ...orders, rules }, handle, [input])).attempts[0].delay
  }
  assert.equal(await first(new VerySlow('late')), 2000)
  assert.equal(await first(Object.assign(new Error('refused'), { code: 'ECONNREFUSED' })), 3000)
  assert.equal(await first(new Error('x'), { body: 'x', headers: { kind: 'invoice' } }), 4000)
  assert.equal(await first(new Error('x'), { body: 'x', routingKey: 'eu.de' }), 5000)
  assert.equal(await first(new Error('x')), 1000)
})

test('a handler that takes too long has failed, and is told', async () => {
  let aborted
  const handle = (msg, ctx) =>
    new Promise(() => {
      ctx.signal.addEventListener('abort', () => (aborted = ctx.signal.reason.name))
    })
  // No class is asked of what no handler has thrown, and there is no stack of it.
  const options = { ...orders, handlerTimeout: 20, retry: 'fixed(1s, retries=0)', fatal: [Error] }
  const result = await simulate(options, handle, ['x'])
  const { reason, message } = result.parked[0]
  assert.deepEqual(
    [reason, message.headers['x-retry-error-type'], message.headers['x-retry-error-stack']],
    ['exhausted', 'HandlerTimeout', undefined],
  )
  assert.equal(result.attempts[0].error.name, 'TimeoutError')
  assert.equal(aborted, 'TimeoutError')
})

test('a handler that blocks the event loop for too long has failed', async () => {
  const handle = async () => {
    for (const end = performance.now() + 50; performance.now() < end; );
  }
  const { attempts, parked } = await simulate({ ...orders, handlerTimeout: 20, retry: 'fixed(1s, retries=0)' }, handle, ['x'])
  assert.deepEqual([attempts[0].error.name, parked[0].reason], ['TimeoutError', 'exhausted'])
})

test('a time limit longer than a timer can be is not over at once', async () => {
  const handle = () => new Promise((resolve) => setTimeout(resolve, 30))
  for (const handlerTimeout of [2 ** 31, '720h']) {
    const result = await simulate({ ...orders, handlerTimeout }, handle, ['x'])
    assert.deepEqual([result.acked.length, result.attempts.length], [1, 1])
  }
})

test('without dlx a failure is rejected, and without park given up is dropped', async () => {
  const fail = () => {
    throw new Error('no')
  }
  assert.equal((await simulate({ queue: 'orders' }, fail, ['x'])).ends[0].became, 'rejected')
  const dropped = await simulate({ ...orders, park: false, retry: 'fixed(1s, retries=1)' }, fail, ['x'])
  assert.deepEqual([dropped.ends[0].became, dropped.ends[0].reason], ['dropped', 'exhausted'])
})

test('simulations are let go', async () => {
  assert.ok(globalThis.gc, 'run with --expose-gc')
  for (const deadline = Date.now() + 60_000; Date.now() < deadline; ) {
    globalThis.gc()
    await new Promise((resolve) => setImmediate(resolve))
    if (liveObjects().simulations === 0) return
  }
  assert.fail(`${liveObjects().simulations} simulations are alive`)
})
