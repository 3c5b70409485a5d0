// Logins that a function says.

import assert from 'node:assert/strict'
import { AsyncLocalStorage } from 'node:async_hooks'
import { once } from 'node:events'
import { inspect } from 'node:util'

import { connect, setLogger } from 'retryrmq'
import { liveObjects } from 'retryrmq/testing'

import { deferred, program, queue, test, until } from './broker.mjs'
import { at, broker, proxy, user } from './network.mjs'

const nobody = at(broker.host, 'nobody:nothing')

/** Has a test leave nothing behind that was not there before: tests that are over may still hold their clients. */
function leavesNothing(counted = ['credential_providers', 'credential_requests', 'operations']) {
  const counts = () => counted.map((kind) => liveObjects()[kind] ?? 0)
  const before = counts()
  return () =>
    until('what it began is gone', () => {
      globalThis.gc()
      return counts().every((count, kind) => count <= before[kind])
    }).catch(() => assert.fail(`alive: ${JSON.stringify(liveObjects())}, before: ${before}`))
}

for (const [how, answer] of [
  ['plain', (login) => login],
  ['async', async (login) => login],
]) {
  test(`a function is asked at every connection (${how})`, async (t) => {
    const [way, who, name] = [await proxy(t), await user(t), await queue(t)]
    let [password, asked] = ['old', 0]
    const credentials = () => {
      asked++
      return answer({ user: who.name, password })
    }
    const rmq = await connect(at(way.place, 'nobody:nothing'), { credentials })
    t.after(() => rmq.close())
    assert.equal(asked, 2, 'for each of the two connections')
    const handled = deferred()
    const consumer = await rmq.consume({ queue: name, dlx: true }, (msg) => handled.resolve(msg.text()))
    let refused = 0
    consumer.on('login_refused', () => refused++)
    const reconnected = once(consumer, 'reconnected')
    await who.setPassword('new')
    const before = asked
    password = 'new'
    way.cut()
    await reconnected
    await until('both connections are back', () => rmq.healthy())
    assert.ok(asked >= before + 2, `asked ${asked - before} times`)
    await rmq.publish(name, 'x')
    assert.equal(await handled.promise, 'x')
    assert.equal(refused, 0)
  })
}

test('a password with an end is asked for again, and the connection stays open', async (t) => {
  const gone = leavesNothing(['credential_requests', 'operations'])
  const who = await user(t)
  let asked = 0
  const credentials = () => {
    asked++
    return { user: who.name, password: 'old', expiresIn: '2s' }
  }
  const rmq = await connect(nobody, { credentials })
  await until('it is asked before the end', () => asked >= 4)
  assert.equal(rmq.reconnects, 0)
  assert.equal(rmq.healthy(), true)
  await rmq.close()
  await gone()
})

test('a function runs in the context of connect', async (t) => {
  const [who, storage, seen] = [await user(t), new AsyncLocalStorage(), new Set()]
  const credentials = () => {
    seen.add(storage.getStore())
    return { user: who.name, password: 'old' }
  }
  const rmq = await storage.run('mine', () => connect(nobody, { credentials }))
  await rmq.close()
  assert.deepEqual([...seen], ['mine'])
})

const SECRET = 'sesame-4711'
const thrower = (error) => () => {
  throw error
}
for (const [what, credentials, says] of [
  ['throws', thrower(new Error('the vault is sealed')), /failed: the vault is sealed$/],
  ['rejects', async () => thrower(new TypeError('no key'))(), /failed: no key$/],
  ['throws a text', thrower(SECRET), /failed: it threw a string$/],
  ['rejects with the login', () => Promise.reject({ user: 'x', password: SECRET }), /failed: it threw an object$/],
  ['throws nothing', thrower(undefined), /failed: it threw undefined$/],
  ['throws what cannot be read', thrower(Proxy.revocable({}, {}).proxy), /failed: it threw an object$/],
  ['throws a long text', thrower(new Error('x'.repeat(100_000))), /failed: x{1024}$/],
  ['returns nothing', () => {}, /failed: it must return \{ user, password \}, not undefined$/],
  ['returns a text', async () => SECRET, /not a string$/],
  ['returns an array', () => ['x', SECRET], /not an array$/],
  ['returns a function', () => () => ({ user: 'x', password: SECRET }), /not a function$/],
  ['returns no user', () => ({ password: SECRET }), /`user` must be a string, not undefined$/],
  ['returns bytes', () => ({ user: 'x', password: Buffer.from(SECRET) }), /`password` must be a string, not an object$/],
  ['misspells', () => ({ user: 'x', password: SECRET, expires_in: 5 }), /no option `expires_in`.* expiresIn$/],
  ['returns no lifetime', () => ({ user: 'x', password: SECRET, expiresIn: SECRET }), /`expiresIn` must be .* '5m'$/],
  ['returns a bad lifetime', () => ({ user: 'x', password: SECRET, expiresIn: -1 }), /`expiresIn` cannot be -1 ms/],
  [
    'returns getters that throw',
    () => ({
      user: 'x',
      get password() {
        throw new Error('not now')
      },
    }),
    /failed: not now$/,
  ],
  [
    'returns a bad thenable',
    () => ({
      get then() {
        throw new Error('no promise')
      },
    }),
    /failed: no promise$/,
  ],
  ['is wrong', () => ({ user: 'nobody', password: SECRET }), /refuses the user `nobody` or its password/],
]) {
  test(`a function that ${what} is a login that failed`, async (t) => {
    const gone = leavesNothing()
    const lines = []
    const keep = (line) => lines.push(line)
    setLogger({ error: keep, warn: keep, info: keep, debug: keep })
    try {
      for (const wait of [false, true]) {
        await assert.rejects(connect(nobody, { credentials, wait }), (error) => {
          assert.equal(error.name, 'AuthenticationFailedError')
          assert.match(error.message, says)
          assert.ok(!inspect(error, { showHidden: true, depth: 9 }).includes(SECRET))
          return true
        })
      }
    } finally {
      setLogger(false)
    }
    assert.ok(!lines.some((line) => line.includes(SECRET)), lines.join('\n'))
    await gone()
  })
}

test('a function that never answers is a login that failed', async (t) => {
  const gone = leavesNothing()
  let signal
  const credentials = (context) => ((signal = context.signal), new Promise(() => {}))
  await assert.rejects(connect(nobody, { credentials }), {
    name: 'AuthenticationFailedError',
    message: /did not answer within 20 s/,
  })
  await until('the call is to end', () => signal.aborted)
  assert.equal(signal.reason.name, 'AbortError')
  await gone()
})

test('whoever gives up waits for no answer', async (t) => {
  const gone = leavesNothing()
  const [asked, controller] = [deferred(), new AbortController()]
  const credentials = () => (asked.resolve(), new Promise(() => {}))
  const connecting = connect(nobody, { credentials, signal: controller.signal })
  await asked.promise
  controller.abort(new Error('changed my mind'))
  await assert.rejects(connecting, { message: 'changed my mind' })
  await gone()
})

test('an answer that comes too late changes nothing', async (t) => {
  const gone = leavesNothing()
  const [asked, late, controller] = [deferred(), deferred(), new AbortController()]
  const credentials = () => (asked.resolve(), late.promise)
  const connecting = connect(nobody, { credentials, signal: controller.signal })
  await asked.promise
  controller.abort()
  await assert.rejects(connecting)
  await gone()
  late.resolve({ user: 'x', password: 'y' })
  await new Promise(setImmediate)
  assert.equal(liveObjects().credential_requests, 0)
})

test('closing waits for no answer', async (t) => {
  const gone = leavesNothing(['credential_requests', 'operations'])
  const [way, who, name] = [await proxy(t), await user(t), await queue(t)]
  let [hangs, hanging] = [false, 0]
  const [answered, ended] = [[], []]
  const credentials = ({ signal }) => {
    if (!hangs) return answered.push(signal), { user: who.name, password: 'old' }
    hanging++
    return new Promise((_, reject) => signal.addEventListener('abort', () => (ended.push(signal.reason), reject(signal.reason))))
  }
  const rmq = await connect(at(way.place), { credentials })
  await rmq.consume({ queue: name, dlx: true }, () => {})
  hangs = true
  way.cut()
  await until('both connections wait for an answer', () => hanging === 2)
  await rmq.close()
  // One that was given up on is asked again.
  assert.equal(hanging, 2)
  assert.match(rmq.trouble(), /closed/)
  await until('both calls are to end', () => ended.length === 2)
  assert.match(ended[0].message, /the client was closed/)
  assert.ok(answered.length >= 2 && !answered.some((signal) => signal.aborted))
  await gone()
})

test('a function that fails after a loss is asked again, and the client goes on', async (t) => {
  const [way, who, name] = [await proxy(t), await user(t), await queue(t)]
  let sealed = false
  const credentials = async () => {
    if (sealed) throw new Error('the vault is sealed')
    return { user: who.name, password: 'old' }
  }
  // What the broker has not refused ends no client.
  const rmq = await connect(at(way.place), { credentials, endWhenRefused: true })
  t.after(() => rmq.close())
  const consumer = await rmq.consume({ queue: name, dlx: true }, () => {})
  const reconnected = once(consumer, 'reconnected')
  sealed = true
  way.cut()
  await until('it is known why', () => /the vault is sealed$/.test(rmq.trouble()))
  sealed = false
  await reconnected
  await until('it is back', () => rmq.healthy())
})

test('a client may end when what a function says is refused', async (t) => {
  const [way, who, name] = [await proxy(t), await user(t), await queue(t)]
  const credentials = () => ({ user: who.name, password: 'old' })
  const rmq = await connect(at(way.place), { credentials, endWhenRefused: true })
  const consumer = await rmq.consume({ queue: name, dlx: true }, () => {})
  await who.setPassword('new')
  way.cut()
  await assert.rejects(consumer.closed, { code: 'authentication_failed' })
  await rmq.close()
})

test('a function goes with its client, which it may hold', async (t) => {
  const gone = leavesNothing()
  const who = await user(t)
  const connected = async (close) => {
    const held = {}
    const credentials = () => ({ user: who.name, password: held.rmq === undefined ? 'old' : 'none' })
    held.rmq = await connect(nobody, { credentials })
    if (close) await held.rmq.close()
    else held.rmq = undefined
    return new WeakRef(credentials)
  }
  for (const close of [true, false]) {
    const credentials = await connected(close)
    await until('it is gone', () => {
      globalThis.gc()
      return credentials.deref() === undefined
    })
    await gone()
  }
})

for (const mode of ['connecting', 'connected', 'publishing']) {
  test(`a thread that ends while it is asked leaves nothing behind (${mode})`, async (t) => {
    const [way, who] = [await proxy(t), await user(t)]
    const cut = async (_, says) => {
      if (mode === 'connecting') return
      await says('connected')
      way.cut()
    }
    const { code, text, errors } = await program('credentials_in_worker', [at(way.place), who.name, mode], cut, ['--expose-gc'])
    assert.deepEqual([code, errors], [0, ''])
    assert.match(text, mode === 'publishing' ? /the thread that it runs in has ended[^]*gone\n$/ : /gone\n$/)
  })
}
