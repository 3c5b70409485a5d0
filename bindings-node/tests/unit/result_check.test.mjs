// What a handler returns mostly does not matter; work that nobody would ever do is no success.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import vm from 'node:vm'

import { setLogger } from 'retryrmq'
import { simulate } from 'retryrmq/testing'

import { FINE, UNDONE } from './result_cases.mjs'

setLogger(false)
const once = { queue: 'orders', dlx: true, retry: 'fixed(1s, retries=0)' }

function* generator() {
  yield 1
}

for (const [name, handler] of Object.entries({
  'function*': generator,
  'async function*': async function* () {
    yield 1
  },
  '*method': {
    *handle() {
      yield 1
    },
  }.handle,
  'function* of another realm': vm.runInNewContext('(function* () {})'),
})) {
  test(`a handler that is ${name} is refused at once`, () => {
    assert.throws(() => simulate(once, handler, ['x']), {
      name: 'InvalidTypeError',
      code: 'invalid_option',
      message: /the handler is a generator function.*nobody runs.*without `\*`/,
    })
  })
}

for (const [name, { make, says }] of Object.entries(UNDONE)) {
  for (const handler of [() => make(), async () => make(), async () => await Promise.resolve(make())]) {
    test(`a handler that returns ${name} has failed: ${handler}`, async () => {
      const result = await simulate(once, handler, ['x'])
      const [{ became, error }] = result.attempts
      assert.deepEqual([became, error.name], ['parked', 'TypeError'])
      assert.match(error.message, says)
      assert.equal(result.parked[0].message.headers['x-retry-error-type'], 'TypeError')
    })
  }
}

test('a bound generator function is told at its first message', async () => {
  const { attempts } = await simulate(once, generator.bind(null), ['x'])
  assert.match(attempts[0].error.message, /returned a generator/)
})

for (const [name, make] of Object.entries(FINE)) {
  for (const handler of [() => make(), async () => make()]) {
    test(`a handler that returns ${name} has handled its message: ${handler}`, async () => {
      assert.equal((await simulate(once, handler, ['x'])).acked.length, 1)
    })
  }
}

test('a lazy thenable is run, as JavaScript does', async () => {
  for (const wrap of [(lazy) => lazy, async (lazy) => lazy]) {
    let runs = 0
    const lazy = { then: (resolve) => resolve(void runs++) }
    assert.equal((await simulate(once, () => wrap(lazy), ['x'])).acked.length, 1)
    assert.equal(runs, 1)
  }
})

test('what is returned may refuse to be looked at', async () => {
  const evil = new Proxy([], {
    get(target, key) {
      if (key === 'then') return undefined
      throw new Error('no')
    },
  })
  assert.equal((await simulate(once, async () => evil, ['x'])).acked.length, 1)
})

test('a deferral without a delay is a failed attempt', async () => {
  const { defer } = await import('retryrmq')
  for (const delay of [Number.NaN, -1, undefined, '5s']) {
    const handle = () => {
      throw Object.assign(defer('5s'), { delay })
    }
    const { attempts } = await simulate({ ...once, deferLimit: 20 }, handle, ['x'])
    assert.deepEqual(
      attempts.map(({ became }) => became),
      ['parked'],
    )
  }
})
