// Bad input: a clear sentence at the call that names the option, and nothing that was begun.

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { test } from 'node:test'
import { inspect } from 'node:util'

import {
  InvalidOptionError,
  InvalidPolicyError,
  InvalidTypeError,
  RetryRmqError,
  TooLargeError,
  connect,
  fixed,
  rule,
  setLogger,
} from 'retryrmq'
import { simulate } from 'retryrmq/testing'

const handler = () => {}
const planned = (options) => simulate({ queue: 'orders', ...options }, handler, [])

const TYPES = [
  [{ queue: 7 }, /`queue` must be a string, not a number/],
  [{ dlx: 'yes' }, /`dlx` must be true or false, not a string/],
  [{ retry: 5 }, /`retry` must be a policy or a string/],
  [{ strategy: null }, /`strategy` must be a string, not null/],
  [{ rules: 'error=* => fixed(1s)' }, /`rules` must be an array/],
  [{ rules: [7] }, /`rules` must hold rules or strings, not a number/],
  [{ rules: [,] }, /`rules` must hold rules or strings, not undefined/],
  [{ fatal: [,] }, /`fatal` must be error classes, not undefined/],
  [{ prefetch: '64' }, /`prefetch` must be a number, not a string/],
  [{ handlerTimeout: true }, /`handlerTimeout` must be a number of milliseconds or a string/],
  [{ pause: 'sometimes' }, /`pause` must be an object/],
  [{ pause: { share: 0.5 } }, /`pause` has no option `share`/],
  [{ onEvent: {} }, /`onEvent` must be a function/],
  [{ fatal: 'Error' }, /`fatal` must be error classes/],
  [{ fatal: (error) => error.code === 'x' }, /`fatal` takes error classes, not the function.*; to decide at run time, throw `park\(error\)`/],
  [{ fatal: [SyntaxError, { isFatal() {} }.isFatal] }, /not the function `isFatal`;/],
  [{ signal: {} }, /`signal` must be an AbortSignal, not an object without `addEventListener`/],
  [{ workQueue: 5 }, /`workQueue` must be a word .* not a number/],
  [{ workQueue: [] }, /`workQueue` must be a word .* not an array/],
  [{ workQueue: new Map() }, /`workQueue` must be a word .* not a Map/],
  [{ workQueue: { 'x-max-priority': null } }, /`workQueue`: the argument `x-max-priority` must be .* not null/],
  [{ workQueue: { 'x-max-priority': undefined } }, /the argument `x-max-priority` must be .* not undefined/],
  [{ reservedName: 'yes' }, /`reservedName` must be true or false, not a string/],
  [{ keepAlive: 1 }, /`keepAlive` must be true or false/],
  [{ prefetsch: 64 }, /no option `prefetsch`; did you mean `prefetch`\? The options are queue, dlx, retry/],
  [{ retires: 5 }, /no option `retires`; did you mean `retry`\?/],
  [{ handler_timeout: 5 }, /did you mean `handlerTimeout`\?/],
  [{ xyz: 5 }, /no option `xyz`; the options are/],
]

for (const [options, says] of TYPES) {
  test(`a type that cannot work: ${Object.keys(options)[0]}`, () => {
    assert.throws(() => planned(options), (error) => {
      assert.match(error.message, says)
      assert.ok(error instanceof TypeError && error instanceof RetryRmqError && error instanceof InvalidTypeError)
      assert.equal(error.code, 'invalid_option')
      return true
    })
  })
}

const VALUES = [
  [{ queue: '' }, /`queue` is empty/],
  [{ queue: 'my_orders.parked' }, /^`my_orders.parked` is .* of `my_orders`; consume `my_orders`, .* `reservedName`$/],
  [{ prefetch: 0 }, /`prefetch` must be a whole number between 1 and 65535, not 0/],
  [{ priority: 2 ** 31 }, /`priority` must be a whole number between -2147483648 and 2147483647/],
  [{ prefetchBytes: 0 }, /`prefetchBytes` must be a whole number between 1 and /],
  [{ prefetch: 1.5 }, /`prefetch` must be a whole number/],
  [{ concurrency: -1 }, /`concurrency`/],
  [{ handlerTimeout: Number.NaN }, /`handlerTimeout` cannot be NaN ms/],
  [{ handlerTimeout: -1 }, /`handlerTimeout` cannot be -1 ms/],
  [{ handlerTimeout: 0 }, /`handlerTimeout` must be longer than 0/],
  [{ dlx: true, workQueue: 'stream' }, /^`workQueue`: `stream` is none of quorum, classic, existing/],
  [{ dlx: true, workQueue: { 'x-queue-type': 'stream' } }, /^`workQueue`: a stream cannot be/],
  [{ dlx: true, workQueue: { 'x-max-length': 1.5 } }, /`x-max-length` must be .* not 1.5$/],
  [{ dlx: true, workQueue: { 'x-max-length': 2n ** 64n } }, /`x-max-length` must be .* a whole number/],
  [{ workQueue: {} }, /^`workQueue` needs `dlx`/],
  [{ park: false }, /^`park` needs `dlx`: without it a failed message is rejected/],
  [{ fatal: TypeError }, /^`fatal` needs `dlx`: without it a failed message is rejected/],
  [{ drainTimeout: 'soon' }, /`drainTimeout`: .*soon/],
  [{ pause: { window: 0 } }, /`window` must be a whole number/],
  [{ pause: { failures: NaN } }, /`failures` of `pause` cannot be NaN/],
  [{ strategy: 'hope' }, /^`strategy`: .*hope/],
  [{ queue: 'orders\ud83d' }, /^`queue` holds a lone surrogate/],
  [{ dlx: true, retry: 'fixed(1s)\udc00' }, /^`retry` holds a lone surrogate/],
  [{ dlx: true, strategy: '\ud800' }, /^`strategy` holds a lone surrogate/],
  [{ dlx: true, rules: ['error=A\ud800 => fixed(1s)'] }, /^`rules` holds a lone surrogate/],
  [{ dlx: true, rules: [rule({ error: '\ud800' }, 'fixed(1s)')] }, /^`rules` holds a lone surrogate/],
  [{ dlx: true, rules: [rule({ headers: { '\ud800': 'x' } }, 'fixed(1s)')] }, /^`rules` holds a lone surrogate/],
  [{ workQueue: { 'x-\ud800': 1 } }, /^`workQueue` holds a lone surrogate/],
]

for (const [options, says] of VALUES) {
  test(`a value that cannot work: ${inspect(options, { breakLength: Infinity })}`, () => {
    assert.throws(() => planned(options), (error) => {
      assert.match(error.message, says)
      assert.ok(error instanceof RangeError && error instanceof RetryRmqError && error instanceof InvalidOptionError)
      assert.equal(error.code, 'invalid_option')
      return true
    })
  })
}

test('a policy that cannot be read', () => {
  assert.throws(() => planned({ retry: 'sometimes(1s)' }), InvalidPolicyError)
  assert.throws(() => planned({ dlx: true, rules: ['nonsense'] }), { code: 'invalid_policy', message: /^`rules`: / })
  assert.throws(() => rule({ error: Error }, 'sometimes(1s)'), { code: 'invalid_policy', message: /^`policy`: / })
})

test('a queue whose name is too long is refused by name', () => {
  for (const options of [{ queue: 'q'.repeat(256) }, { queue: 'q'.repeat(250), dlx: true }]) {
    assert.throws(() => planned(options), (error) => {
      assert.match(error.message, /^`queue`: /)
      assert.ok(error instanceof TooLargeError && error instanceof RangeError && error instanceof RetryRmqError)
      assert.equal(error.code, 'too_large')
      return true
    })
  }
})

test('a string with whole surrogate pairs is an option like any other', () => {
  planned({ queue: 'orders \u{1f600}', dlx: true, rules: [rule({ error: '\u{1f600}' }, 'fixed(1s)')] })
})

test('options may be inherited', async () => {
  class Options {
    queue = 'orders'
    get dlx() {
      return true
    }
  }
  const fail = () => {
    throw new Error('no')
  }
  const inherited = Object.create({ dlx: true, retry: fixed('1s', Object.create({ retries: 0 })) })
  inherited.queue = 'orders'
  for (const [options, attempts] of [[inherited, 1], [new Options(), 6]]) {
    const result = await simulate(options, fail, ['x'])
    assert.deepEqual([result.parked.length, result.attempts.length], [1, attempts])
  }
})

test('connecting with options that cannot work rejects', async () => {
  await assert.rejects(connect('http://localhost'), { name: 'InvalidUrlError', code: 'invalid_url' })
  await assert.rejects(connect(null), { name: 'InvalidTypeError', message: /`url` must be a string, not null/ })
  await assert.rejects(connect(7), { name: 'InvalidTypeError', message: /`url` must be a string/ })
  await assert.rejects(connect(['amqp://one', 7]), { name: 'InvalidTypeError', message: /`url` must be a string, not a number/ })
  await assert.rejects(connect([]), { name: 'InvalidUrlError' })
  await assert.rejects(connect(['amqp://one/v', 'amqp://two/w']), { name: 'InvalidUrlError', message: /different virtual hosts/ })
  for (const option of ['wait', 'endWhenRefused']) {
    const message = new RegExp(`\`${option}\` must be true or false`)
    await assert.rejects(connect('amqp://localhost', { [option]: 1 }), { name: 'InvalidTypeError', message })
  }
  await assert.rejects(connect('amqp://localhost', { timeout: 5 }), /no option `timeout`/)
  for (const [credentials, what] of [
    [{ user: 'x', password: 's3cret' }, 'an object'],
    ['s3cret', 'a string'],
    [null, 'null'],
  ]) {
    const message = `\`credentials\` must be a function that returns { user, password }, not ${what}`
    await assert.rejects(connect('amqp://localhost', { credentials }), { name: 'InvalidTypeError', message })
  }
  await assert.rejects(connect('amqp://localhost', { queueType: 'stream' }), { code: 'invalid_option', message: /^`queueType`: / })
  await assert.rejects(connect('amqp://localhost', { signal: {} }), /`signal` .* an object without `addEventListener`/)
})

test('connecting that was given up rejects', async () => {
  const signal = AbortSignal.abort(new Error('changed my mind'))
  await assert.rejects(connect('amqp://localhost', { signal }), { message: 'changed my mind' })
})

test('connecting that is given up on the way rejects', async (t) => {
  const controller = new AbortController()
  const silent = createServer((socket) => {
    controller.abort(new Error('changed my mind'))
    socket.destroy()
  }).listen(0, '127.0.0.1')
  t.after(() => silent.close())
  await once(silent, 'listening')
  const connecting = connect(`amqp://127.0.0.1:${silent.address().port}`, { signal: controller.signal })
  await assert.rejects(connecting, { message: 'changed my mind' })
})

test('an error says who asked', async () => {
  async function whoAsked() {
    await connect('amqp://127.0.0.1:1/')
  }
  const refused = await whoAsked().catch((error) => error)
  assert.match(refused.stack, /^UnreachableError: [^]*\n {4}at .*whoAsked/)
  assert.ok(!Object.keys(refused).includes('stack'))
})

test('an error shows nothing but its code beside its text', async () => {
  const refused = await connect('amqp://127.0.0.1:1/').catch((error) => error)
  assert.deepEqual(Reflect.ownKeys(refused).filter((key) => typeof key === 'symbol'), [])
  assert.ok(refused instanceof RetryRmqError && new InvalidTypeError('x') instanceof RetryRmqError)
})

test('a logger without a level is told which', () => {
  assert.throws(() => setLogger({ error() {}, info() {}, debug() {} }), /one without `warn`/)
  assert.throws(() => setLogger(7), /`logger` must be .* not a number/)
})

test('a password is in no error', async () => {
  const refused = await connect('amqp://guest:s3cret@127.0.0.1:1/').catch((error) => error)
  assert.equal(refused.code, 'unreachable')
  assert.ok(refused instanceof RetryRmqError)
  let shown = ''
  for (let error = refused; error; error = error.cause) shown += `${error.stack}${JSON.stringify(error)}`
  assert.doesNotMatch(shown, /s3cret/)
})

test('what is no error of ours is none', () => {
  assert.ok(!(new Error('x') instanceof RetryRmqError))
  assert.ok(!(null instanceof RetryRmqError))
  assert.ok(!(new RangeError('x') instanceof InvalidOptionError))
})

test('rules need a condition, and know no other', () => {
  assert.throws(() => rule({}, 'fixed(1s)'), { code: 'invalid_option' })
  assert.throws(() => rule({ exchange: 'x' }, 'fixed(1s)'), /no condition `exchange`/)
  assert.throws(() => rule({ error: 7 }, fixed('1s')), /`error` must be an error class or a pattern/)
  assert.throws(() => rule({ error: () => true }, fixed('1s')), /`error` takes error classes/)
  assert.throws(() => rule({ error: (() => class extends Error {})() }, fixed('1s')), { name: 'InvalidTypeError', message: /a name/ })
  class Numbered extends Error {
    static name = 7
  }
  assert.throws(() => rule({ error: Numbered }, fixed('1s')), { name: 'InvalidTypeError', message: /`error`.* a name/ })
  assert.throws(() => rule({ error: Error }), { name: 'InvalidTypeError', message: /`policy` of a rule must be/ })
})
