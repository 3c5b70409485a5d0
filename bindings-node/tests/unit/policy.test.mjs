// Policies as objects and as text are the same thing.

import assert from 'node:assert/strict'
import { test } from 'node:test'

import { Policy, exponential, fixed, linear, list } from 'retryrmq'

test('objects are texts', () => {
  assert.equal(String(fixed('5s', { retries: 3 })), String(new Policy('fixed(5s, retries=3)')))
  assert.equal(String(fixed(5000, { retries: 3 })), String(fixed('5s', { retries: 3 })))
  assert.equal(
    String(exponential('1s', { factor: 4, max: '5m', retries: 5, jitter: 0.2, maxAge: '1h', ageFrom: 'published' })),
    String(new Policy('exponential(1s, factor=4, max=5m, retries=5, jitter=0.2, max_age=1h, age_from=published)')),
  )
  assert.equal(String(linear('1s', { step: '2s', max: '1m' })), String(new Policy('linear(1s, step=2s, max=1m)')))
  assert.equal(String(list(['1s', 10_000, '1m'])), String(new Policy('list(1s, 10s, 1m)')))
})

test('delays are known', () => {
  assert.deepEqual(exponential().delays, [1000, 4000, 16_000, 64_000, 256_000])
  assert.equal(exponential().retries, 5)
  assert.deepEqual(list(['1s', '10s']).delays, [1000, 10_000])
})

test('what makes no policy says why', () => {
  assert.throws(() => fixed(), /`delay` must be a number of milliseconds or a string/)
  assert.throws(() => fixed('soon'), /`delay`: /)
  assert.throws(() => fixed('1s', { retires: 3 }), /fixed\(\) has no option `retires`; did you mean `retries`\? The options are/)
  assert.throws(() => fixed('1s', { retries: '3' }), /`retries` must be a number/)
  assert.throws(() => fixed('1s', { jitter: 7 }), { code: 'invalid_policy' })
  assert.throws(() => list('1s'), /`delays` must be an array/)
  assert.throws(() => exponential('1s', { ageFrom: 'now' }), /`ageFrom` must be/)
})
