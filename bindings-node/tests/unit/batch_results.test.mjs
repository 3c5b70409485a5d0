// What a handler of batches answers, with the real policy and without a broker: the simulation gives it one message at a time.

import assert from 'node:assert/strict'
import { test } from 'node:test'

import { defer, park, retryAfter, setLogger } from 'retryrmq'
import { simulate } from 'retryrmq/testing'

import { UNDONE } from './result_cases.mjs'

setLogger(false)
const once = { queue: 'orders', dlx: true, retry: 'fixed(1s, retries=0)', batch: 10 }
const attempt = async (handler) => (await simulate(once, handler, ['x'])).attempts[0]

for (const [name, { make, says }] of Object.entries(UNDONE)) {
  test(`${name} is no answer`, async () => {
    for (const answers of [() => [make()], async () => [make()]]) {
      const { became, error } = await attempt(answers)
      assert.deepEqual([became, error.name], ['parked', 'TypeError'])
      assert.match(error.message, says)
    }
  })
  test(`${name} in a result of Promise.allSettled is no answer`, async () => {
    const { became } = await attempt(() => [{ status: 'fulfilled', value: make() }])
    assert.equal(became, 'parked')
  })
}

test('promises and thenables are no answers', async () => {
  const lazy = { then: () => assert.fail('it must not be started') }
  for (const answers of [[Promise.reject(new Error('in the background'))], [lazy], [{ status: 'fulfilled', value: lazy }]]) {
    const { became, error } = await attempt(() => answers)
    assert.equal(became, 'parked')
    assert.match(error.message, /a promise, which nobody awaits/)
  }
})

test('a signal in a result of Promise.allSettled counts as thrown', async () => {
  const settled = (value) => async () => Promise.allSettled([Promise.resolve(value())])
  const { parked } = await simulate(once, settled(() => park('ask')), ['x'])
  assert.equal(parked[0].reason, 'requested')
  let signals = [defer('1s'), undefined]
  const deferred = await simulate(once, settled(() => signals.shift()), ['x'])
  assert.deepEqual(deferred.attempts.map(({ became }) => became), ['deferred', 'acked'])
  signals = [retryAfter('7s'), undefined]
  const retried = await simulate({ ...once, retry: 'fixed(1s, retries=1)' }, settled(() => signals.shift()), ['x'])
  assert.deepEqual(retried.attempts.map(({ delay }) => delay), [7000, undefined])
})

test('an ordinary value with a status is a success', async () => {
  class Payment {
    status = 'rejected'
    get reason() {
      return 'no money'
    }
  }
  const values = [{ id: 7, status: 'rejected' }, { status: 'rejected' }, { status: 'rejected', reason: 'x', id: 7 }, new Payment()]
  for (const value of values) assert.equal((await attempt(() => [value])).became, 'acked', JSON.stringify(value))
  assert.equal((await attempt(() => [{ status: 'rejected', reason: undefined }])).became, 'parked')
})

test('values that are not in an array answer no message', async () => {
  const many = [new Map(), new Set([7]), new Uint8Array(1), Buffer.from('x'), new ArrayBuffer(1), [7].values(), new Map([[1, 2]]).keys()]
  for (const value of many) {
    const { became, error } = await attempt(async () => value)
    assert.deepEqual([became, error.name], ['parked', 'BatchAnswerError'])
    assert.match(error.message, /^the handler returned values that are not in an array; return an array with one answer for each message/)
  }
  for (const value of [undefined, null, 7, 'text', true, {}, new Date()]) assert.equal((await attempt(() => value)).became, 'acked')
})

test('answers that refuse to be looked at have failed', async () => {
  const refuses = (key) => {
    if (key === 'then') return undefined
    throw new RangeError('no')
  }
  const evil = new Proxy([], { get: (_, key) => refuses(key) })
  assert.equal((await attempt(async () => evil)).became, 'parked')
})
