// In a realm of its own, as test runners have it: the errors of native modules are of the main realm.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import vm from 'node:vm'

const require = createRequire(import.meta.url)

/** The package as a realm sees it that has JavaScript's own globals once more, and the others from here. */
function load(realm, file, loaded = new Map()) {
  if (loaded.has(file)) return loaded.get(file).exports
  const module = { exports: {} }
  loaded.set(file, module)
  const run = vm.compileFunction(readFileSync(file, 'utf8'), ['module', 'exports', 'require'], {
    parsingContext: realm,
    filename: file,
  })
  const nearby = (name) => {
    const found = name.startsWith('./') ? path.join(path.dirname(file), name) : undefined
    return found === undefined ? createRequire(file)(name) : load(realm, found, loaded)
  }
  run(module, module.exports, nearby)
  return module.exports
}

const { AbortController, Buffer, DOMException, clearTimeout, console, performance, setImmediate, setInterval, setTimeout } =
  globalThis
const realm = vm.createContext({
  AbortController,
  Buffer,
  DOMException,
  clearTimeout,
  console,
  performance,
  process,
  setImmediate,
  setInterval,
  setTimeout,
})
const dist = path.dirname(require.resolve('retryrmq'))
const loaded = new Map()
const inside = load(realm, path.join(dist, 'index.js'), loaded)
const { simulate } = load(realm, path.join(dist, 'testing.js'), loaded)

test('it is another realm', () => {
  assert.ok(!(new inside.InvalidOptionError('x') instanceof Error))
  assert.ok(vm.runInContext('Error', realm).prototype.isPrototypeOf(new inside.InvalidOptionError('x')))
})

test('errors of the native half have their class, their code, and the name of the option', async () => {
  const refused = (call, Class, code, says) =>
    assert.rejects(async () => call(), (error) => {
      assert.ok(error instanceof Class && error instanceof inside.RetryRmqError, error.stack)
      assert.equal(error.code, code)
      assert.match(error.message, says)
      return true
    })
  await refused(() => new inside.Policy('nonsense'), inside.InvalidPolicyError, 'invalid_policy', /nonsense/)
  await refused(() => inside.fixed('soon'), inside.InvalidOptionError, 'invalid_option', /^`delay`: /)
  await refused(() => inside.connect('http://localhost'), inside.InvalidUrlError, 'invalid_url', /http/)
  const options = { queue: 'orders', handlerTimeout: 0 }
  await refused(() => simulate(options, () => {}, []), inside.InvalidOptionError, 'invalid_option', /`handlerTimeout`/)
})

test('values of both realms are what they are', async () => {
  const source = '({ when: new Date(5000), list: [1, { two: 2 }], bytes: new Uint8Array([3]) })'
  for (const { when, list, bytes } of [vm.runInContext(source, realm), vm.runInThisContext(source)]) {
    const input = { body: bytes.buffer, timestamp: when, headers: { when, list, bytes } }
    const [{ message }] = (await simulate({ queue: 'orders' }, () => {}, [input, bytes.buffer])).attempts
    assert.deepEqual([...message.body], [3])
    assert.equal(message.properties.timestamp.getTime(), 5000)
    assert.equal(message.headers.when.getTime(), 5000)
    assert.equal(message.headers.list[1].two, 2)
    assert.deepEqual([...message.headers.bytes], [3])
  }
})

test('a handler of either realm throws its errors', async () => {
  for (const error of [new TypeError('no'), vm.runInContext('new TypeError("no")', realm)]) {
    const fail = () => {
      throw error
    }
    const result = await simulate({ queue: 'orders', dlx: true, retry: 'fixed(1s, retries=0)' }, fail, ['x'])
    assert.match(result.parked[0].message.headers['x-retry-error-stack'], /^TypeError: no\n/)
  }
})
