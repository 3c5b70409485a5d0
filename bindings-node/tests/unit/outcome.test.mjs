// Handlers throw anything; every time there is an attempt that failed, and a text that a person can read.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import vm from 'node:vm'

import { RetryAfter, defer, park, retryAfter } from 'retryrmq'
import { simulate } from 'retryrmq/testing'

async function parked(thrown, how = 'throw') {
  const handle = () => {
    if (how === 'throw') throw thrown
    return Promise.reject(thrown)
  }
  const result = await simulate({ queue: 'orders', dlx: true, retry: 'fixed(1s, retries=0)', fatal: [RangeError] }, handle, [
    'x',
  ])
  assert.equal(result.parked.length, 1)
  const { headers } = result.parked[0].message
  return [headers['x-retry-error'], headers['x-retry-error-type'] ?? '', headers['x-retry-error-stack']]
}

class Odd extends Error {
  get message() {
    throw new Error('no message for you')
  }
  get stack() {
    throw new Error('no stack either')
  }
}

const refusing = new Proxy(
  {},
  {
    get() {
      throw new Error('no')
    },
    getPrototypeOf() {
      throw new Error('no')
    },
    ownKeys() {
      throw new Error('no')
    },
  },
)
const circular = new Error('round and round')
circular.cause = circular
class TimeoutError extends Error {}

const CASES = [
  [undefined, 'the handler threw undefined', ''],
  [null, 'the handler threw null', ''],
  ['just text', 'just text', ''],
  ['', 'the handler threw an empty string', ''],
  [0, 'the handler threw 0', ''],
  [10n, 'the handler threw 10n', ''],
  [Symbol('s'), 'the handler threw Symbol(s)', ''],
  [Object.freeze(new Error('frozen')), 'frozen', 'Error'],
  [Object.freeze({ message: 'plain' }), 'plain', ''],
  [{ a: 1 }, 'the handler threw { a: 1 }', ''],
  [Object.create(null), 'the handler threw [Object: null prototype] {}', ''],
  [new Odd(), 'Odd', 'Odd'],
  [refusing, /^the handler threw/, ''],
  [circular, 'round and round', 'Error'],
  [new TimeoutError(''), 'TimeoutError', 'TimeoutError'],
  [new DOMException('late', 'AbortError'), 'late', 'AbortError'],
  [vm.runInNewContext('new TypeError("elsewhere")'), 'elsewhere', 'TypeError'],
  [new AggregateError([new Error('a')], 'all failed'), 'all failed', 'AggregateError'],
]

for (const [thrown, error, type] of CASES) {
  for (const how of ['throw', 'reject']) {
    test(`a handler that ${how}s so that people read: ${error}`, async () => {
      const [text, name] = await parked(thrown, how)
      if (error instanceof RegExp) assert.match(text, error)
      else assert.equal(text, error)
      assert.equal(name, type)
    })
  }
}

test('the stack holds the causes', async () => {
  const deepest = new RangeError('deepest')
  const [, , stack] = await parked(new Error('outer', { cause: new TypeError('middle', { cause: deepest }) }))
  assert.match(stack, /^Error: outer\n[^]*\ncaused by: TypeError: middle\n[^]*\ncaused by: RangeError: deepest\n/)
})

test('the stack holds the errors that were gathered', async () => {
  const gathered = new AggregateError([new TypeError('first'), new RangeError('second')], 'all failed')
  const [, , stack] = await parked(new Error('outer', { cause: gathered }))
  assert.match(stack, /^Error: outer\n[^]*\ncaused by: AggregateError: all failed\n/)
  assert.match(stack, /\none of its errors: TypeError: first\n[^]*\none of its errors: RangeError: second\n/)
})

test('an endless text crosses as far as somebody keeps it', async () => {
  const endless = 'x'.repeat(50_000_000)
  const cause = Object.assign(new Error('why'), { name: endless })
  const [text, name, stack] = await parked(Object.assign(new Error(endless, { cause }), { name: endless }))
  assert.ok(text.startsWith('xxx') && text.length <= 1024, `${text.length} characters`)
  assert.ok(name.startsWith('xxx') && name.length <= 1024, `${name.length} characters`)
  assert.ok(stack.length <= 16_384, `${stack.length} characters`)
  assert.ok(process.resourceUsage().maxRSS < 450_000, `${process.resourceUsage().maxRSS} KiB`)
})

test('a thenable that is none is a failure', async () => {
  const handle = () => ({
    get then() {
      throw new TypeError('no then')
    },
  })
  const result = await simulate({ queue: 'orders', dlx: true, retry: 'fixed(1s, retries=0)' }, handle, ['x'])
  assert.equal(result.parked[0].message.headers['x-retry-error'], 'no then')
})

test('signals name the argument that cannot work', () => {
  assert.throws(() => retryAfter('soon'), /`delay`: /)
  assert.throws(() => defer(-1), /`delay` cannot be -1 ms/)
  assert.throws(() => park(7), /`reason` must be a string/)
  assert.ok(retryAfter('1s') instanceof RetryAfter)
  assert.equal(retryAfter('1m').delay, 60_000)
  assert.equal(retryAfter(5, new Error('x')).cause.message, 'x')
})
