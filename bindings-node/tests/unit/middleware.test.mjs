// What runs around every attempt, with the real policy and without a broker.

import assert from 'node:assert/strict'
import { AsyncLocalStorage } from 'node:async_hooks'
import { test } from 'node:test'

import { connect, park, setLogger } from 'retryrmq'
import { simulate } from 'retryrmq/testing'

setLogger(false)

const OPTIONS = { queue: 'orders', dlx: true, retry: 'fixed(1s, retries=1)' }
const run = (middleware, handler, more) => simulate({ ...OPTIONS, ...more, middleware }, handler, ['x'])
const fails = () => {
  throw new TypeError('no answer')
}

test('the first of the list is the outermost, around every attempt', async () => {
  const said = []
  const named = (name) => async (msg, next) => {
    said.push(`${name} begins ${msg.attempt}`)
    try {
      await next()
    } finally {
      said.push(`${name} ends`)
    }
  }
  const { acked } = await run([named('outer'), named('inner')], (msg) => {
    said.push('handler')
    if (msg.attempt === 1) fails()
  })
  assert.equal(acked.length, 1)
  const once = (attempt) => [`outer begins ${attempt}`, `inner begins ${attempt}`, 'handler', 'inner ends', 'outer ends']
  assert.deepEqual(said, [...once(1), ...once(2)])
})

test('the attempt ends as the outermost ends', async () => {
  const catches = (msg, next) => next().catch(() => {})
  assert.equal((await run([catches], fails)).attempts[0].became, 'acked')

  let called = false
  const without = await run([() => {}], () => void (called = true))
  assert.equal(without.attempts[0].became, 'acked')
  assert.equal(called, false)

  const translates = async (msg, next) => {
    try {
      await next(msg)
    } catch (error) {
      throw park('ask the customer', { cause: error })
    }
  }
  const { parked } = await run([translates], fails)
  assert.equal(parked[0].reason, 'requested')
  assert.equal(parked[0].message.headers['x-retry-error'], 'ask the customer')
})

test('a middleware gets what the handler returned, and what it threw', async () => {
  const seen = []
  const sees = async (msg, next) => {
    try {
      seen.push(await next())
    } catch (error) {
      seen.push(error.message)
      throw error
    }
  }
  await run([sees], (msg) => (msg.attempt === 1 ? fails() : 7))
  assert.deepEqual(seen, ['no answer', 7])
})

test('a middleware that returns nothing does not hide what the handler returned', async () => {
  const plain = async (msg, next) => {
    await next()
  }
  const { parked } = await run([plain], () => park('no'))
  assert.equal(parked[0].reason, 'requested')
  const { attempts } = await run([plain], () => [Promise.resolve()])
  assert.match(attempts[0].error.message, /returned an array with a promise/)
})

test('a middleware that does not wait for the rest fails the attempt', async () => {
  const forgets = async (msg, next) => {
    next()
  }
  const slow = () => new Promise((resolve) => setImmediate(resolve))
  for (const middleware of [[forgets], [forgets, async (msg, next) => (await slow(), next())]]) {
    const { attempts } = await run(middleware, slow)
    assert.equal(attempts[0].became, 'retried')
    assert.match(attempts[0].error.message, /write `await next\(\)` or `return next\(\)`/)
  }
})

/** What happens to rejections that nobody handles is up to the process: here it goes on. */
function goesOn(t) {
  const heard = []
  const others = process.listeners('unhandledRejection') // of the test runner, for which they are failures
  process.removeAllListeners('unhandledRejection').on('unhandledRejection', (error) => heard.push(error))
  t.after(() => {
    process.removeAllListeners('unhandledRejection')
    for (const other of others) process.on('unhandledRejection', other)
  })
  return heard
}
const turn = () => new Promise((resolve) => setImmediate(resolve))

test('a failure that no middleware heard of fails the attempt', async (t) => {
  const heard = goesOn(t)
  const plain = (msg, next) => next()
  const deaf = {
    forgets: async (msg, next) => {
      next()
      await turn()
    },
    'hears of success alone': async (msg, next) => {
      next().then(() => {})
      await turn()
    },
    'passes it on': async (msg, next) => {
      next().finally(() => {})
      await turn()
    },
  }
  for (const [name, middleware] of Object.entries(deaf)) {
    for (const all of [[middleware], [plain, middleware], [middleware, plain]]) {
      heard.length = 0
      const { attempts } = await run(all, fails)
      assert.deepEqual(attempts.map(({ became }) => became), ['retried', 'parked'], name)
      assert.equal(attempts[0].error.message, 'no answer')
      await turn()
      assert.equal(heard.length, 2, 'the process hears of it, too')
    }
  }
  const { parked } = await run([deaf.forgets], () => park('no'))
  assert.equal(parked[0].reason, 'requested')
})

test('a failure that a middleware heard of is its own affair', async (t) => {
  const heard = goesOn(t)
  const hearing = [
    (msg, next) => next().catch(() => {}),
    (msg, next) => next().then(() => {}, () => {}),
    (msg, next) => next().finally(() => {}).catch(() => {}),
    (msg, next) => void next().catch(() => {}),
    (msg, next) => Promise.allSettled([next()]),
    (msg, next) => Promise.race([next(), turn()]).catch(() => {}),
    async (msg, next) => {
      const running = next().catch((error) => error)
      await turn()
      return running
    },
    async (msg, next) => {
      const running = next()
      await turn() // late, but it does look
      await running.catch(() => {})
    },
  ]
  for (const middleware of hearing) {
    const failing = async () => fails()
    const { attempts } = await run([async (msg, next) => (await middleware(msg, next), await turn())], failing)
    assert.deepEqual(attempts.map(({ became }) => became), ['acked'], String(middleware))
  }
  await turn()
  assert.equal(heard.length, 1, 'of the one that looked late')
})

test('it may run the rest again, and cannot give it another message', async () => {
  const again = (msg, next) => next().catch(() => next())
  let calls = 0
  const { attempts } = await run([again], () => (++calls === 1 ? fails() : undefined))
  assert.deepEqual([attempts.length, calls], [1, 2])
  const replaces = (msg, next) => next({ ...msg })
  const { attempts: refused } = await run([replaces], () => {})
  assert.match(refused[0].error.message, /`next` takes nothing, or the object that the middleware was called with, not an object/)
})

test('it runs in the context of the handler, with its signal and within its time', async () => {
  const storage = new AsyncLocalStorage()
  const seen = []
  const session = (msg, next) => storage.run(`session ${msg.attempt}`, next)
  await run([session], async (msg) => {
    await new Promise((resolve) => setImmediate(resolve))
    seen.push(storage.getStore())
    if (msg.attempt === 1) fails()
  })
  assert.deepEqual(seen, ['session 1', 'session 2'])

  const hangs = (msg, next, { signal }) => new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
  const { attempts } = await run([hangs], () => {}, { handlerTimeout: '10ms', retry: 'fixed(1s, retries=0)' })
  assert.match(attempts[0].error.message, /took longer than 10ms/)
})

test('a list that cannot work is refused by its name', async () => {
  const refuses = (options, pattern) => assert.rejects(async () => simulate({ ...OPTIONS, ...options }, () => {}, ['x']), pattern)
  await refuses({ middleware: () => {} }, /^InvalidTypeError: `middleware` must be an array of functions, not a function$/)
  await refuses({ middleware: [undefined] }, /^InvalidTypeError: `middleware` must hold functions, not undefined$/)
  await refuses({ middleware: [function* () {}] }, /^InvalidTypeError: `middleware` holds a generator function/)
  await assert.rejects(connect('amqp://localhost', { publishMiddleware: [7] }), /`publishMiddleware` must hold functions, not a number/)
  await assert.rejects(connect('amqp://localhost', { middleware: {} }), /`middleware` must be an array of functions, not an object/)
})
