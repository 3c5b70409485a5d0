// Handlers whose bodies are validated, with the real zod and valibot, and without a broker.

import assert from 'node:assert/strict'
import { test } from 'node:test'

import { ValidationError, defer, setLogger, typed, undecodable } from 'retryrmq'
import { simulate } from 'retryrmq/testing'
import * as v from 'valibot'
import * as z from 'zod'

setLogger(false)

const SCHEMAS = {
  zod: z.object({ id: z.number().min(10), items: z.array(z.object({ name: z.string() })).default([]) }),
  valibot: v.object({
    id: v.pipe(v.number(), v.minValue(10)),
    items: v.optional(v.array(v.object({ name: v.string() })), []),
  }),
}
const OPTIONS = { queue: 'orders', dlx: true, retry: 'fixed(1s, retries=1)' }
const run = (handler, bodies, more) => simulate({ ...OPTIONS, ...more }, handler, bodies)
const recordOf = ({ message: { headers } }) => ({ type: headers['x-retry-error-type'], error: headers['x-retry-error'] })

for (const [library, schema] of Object.entries(SCHEMAS)) {
  test(`${library}: a handler gets the output of the schema, and its message`, async () => {
    const seen = []
    const handler = typed(schema, (order, msg, { signal }) => {
      seen.push([order, msg.messageId, signal.aborted])
      if (seen.length === 1) throw defer('1s')
    })
    const { acked } = await run(handler, [{ body: '{"id":12,"more":1}', messageId: '4711' }])
    assert.equal(acked.length, 1)
    const once = [{ id: 12, items: [] }, '4711', false]
    assert.deepEqual(seen, [once, once])
  })

  test(`${library}: a message with another body is parked at once, with the names of its fields and no values`, async () => {
    const bodies = ['{"id":"4111 1111","items":[{"name":271828}]}', '{"id":7.25}', '"secret"']
    const { attempts, parked } = await run(typed(schema, () => assert.fail('it was called')), bodies)
    assert.equal(attempts.length, bodies.length)
    for (const end of parked) assert.equal(end.reason, 'undecodable')
    const records = parked.map(recordOf)
    for (const { type } of records) assert.equal(type, 'ValidationError')
    assert.match(records[0].error, /^id: .*expected number.*; items\.0\.name: .*expected string/i)
    assert.match(records[1].error, /^id: .*>=10/)
    assert.match(records[2].error, /expected object/i)
    for (const { message } of parked) {
      const texts = [message.headers['x-retry-error'], message.headers['x-retry-error-stack'], JSON.stringify(message.history)]
      for (const text of texts) assert.doesNotMatch(text, /4111|271828|7\.25|secret/)
    }
  })
}

test('a body that is not UTF-8 is parked as undecodable', async () => {
  const seen = []
  const handler = typed(z.object({ name: z.string() }), ({ name }) => void seen.push(name))
  const body = (...bytes) => Buffer.concat([Buffer.from('{"name":"'), Buffer.from(bytes), Buffer.from('"}')])
  const { attempts, parked } = await run(handler, [body(0xff), body(0xc3), body(0xed, 0xa0, 0x80), body(0xef, 0xbf, 0xbd), body(0xc3, 0xa9)])
  assert.deepEqual(attempts.map(({ became }) => became), ['parked', 'parked', 'parked', 'acked', 'acked'])
  assert.deepEqual(seen, ['\ufffd', '\u00e9'], 'the character that stands for others may be published, too')
  for (const end of parked) {
    assert.equal(end.reason, 'undecodable')
    assert.deepEqual(recordOf(end), { type: 'SyntaxError', error: 'the body is not JSON: it is not UTF-8' })
  }
  const { attempts: retried } = await run(typed(z.object({}), () => {}, { invalidBody: 'retry' }), [body(0xff)])
  assert.deepEqual(retried.map(({ became }) => became), ['retried', 'parked'])
})

test('a body that is not JSON is parked as undecodable, and its text is not quoted', async () => {
  const bodies = ['secret', '', 'undefined', '{"id": secret}', '{"id":1', `[${'1,'.repeat(100)}secret]`]
  const { parked } = await run(typed(SCHEMAS.zod, () => {}), bodies)
  assert.equal(parked.length, bodies.length)
  for (const end of parked) {
    assert.equal(end.reason, 'undecodable')
    const { type, error } = recordOf(end)
    assert.equal(type, 'SyntaxError')
    assert.match(error, /^the body is not JSON/)
    assert.doesNotMatch(`${error} ${end.message.headers['x-retry-error-stack']}`, /secret|1,1/)
  }
})

test('an invalid body is retried if that is asked for', async () => {
  const handler = typed(SCHEMAS.zod, () => {}, { invalidBody: 'retry' })
  const { attempts, parked } = await run(handler, ['{}', 'no'])
  assert.deepEqual(parked.map(({ reason }) => reason), ['exhausted', 'exhausted'])
  assert.ok(attempts[0].error instanceof ValidationError)
  assert.deepEqual(attempts[0].error.issues[0].path, ['id'])
  const ruled = await run(handler, ['{}'], { rules: ['error=ValidationError => fixed(1s, retries=3)'] })
  assert.equal(ruled.attempts.length, 4)
})

test('a schema may validate asynchronously, and its own failure is a failed attempt', async () => {
  const known = async (id) => {
    if (id === 13) throw new Error('the database is away')
    return id !== 14
  }
  const schema = v.objectAsync({ id: v.pipeAsync(v.number(), v.checkAsync(known, 'unknown customer')) })
  const seen = []
  const handler = typed(schema, async ({ id }) => void seen.push(id))
  const { ends } = await run(handler, ['{"id":12}', '{"id":13}', '{"id":14}'])
  assert.deepEqual(ends.map(({ became, reason }) => [became, reason]), [
    ['acked', undefined],
    ['parked', 'exhausted'],
    ['parked', 'undecodable'],
  ])
  assert.equal(recordOf(ends[2]).error, 'id: unknown customer')
  assert.deepEqual(seen, [12])
})

test('what a schema says of many parts, of objects and with paths of its own, is one short text', async () => {
  class Path extends Array {
    static get [Symbol.species]() {
      return class extends Array {
        constructor() {
          super('wrong')
        }
      }
    }
  }
  const about = (issues) => ({ '~standard': { version: 1, vendor: 'test', validate: () => ({ issues }) } })
  const error = async (issues, body) => recordOf((await run(typed(about(issues), () => {}), [body])).parked[0]).error
  assert.equal(await error([{ message: 'no', path: new Path() }], '1'), 'no')
  assert.equal(await error([{ message: 'no', path: [{ key: 'a' }, 0] }], '1'), 'a.0: no')
  assert.match(await error(Array(200).fill({ message: 'no' }), '1'), /^(no; ){9}no; and 190 more$/)
  const body = '{"card":{"number":"4111"},"cvc":5}'
  const card = { message: 'invalid: {"number":"4111"}, was `4111`', path: ['card'] }
  assert.equal(await error([card], body), 'card: invalid: an object, was a string')
  const cvc = { message: 'at least 15.5 or -5, and not 5.', path: ['cvc'] }
  assert.equal(await error([cvc], body), 'cvc: at least 15.5 or -5, and not a number.')
})

test('a handler with a decoder of its own says that it cannot read a body', async () => {
  const cases = [
    [undecodable('version 9 is not known'), undefined, 'version 9 is not known'],
    [undecodable(new RangeError('no such version')), 'RangeError', 'no such version'],
    [new Error('while reading', { cause: undecodable('version 9 is not known') }), 'Error', 'version 9 is not known'],
    [undecodable(), undefined, 'the handler cannot read the body'],
  ]
  for (const [thrown, type, error] of cases) {
    const { attempts, parked } = await run(() => Promise.reject(thrown), ['x'])
    assert.equal(attempts.length, 1)
    assert.equal(parked[0].reason, 'undecodable')
    assert.deepEqual(recordOf(parked[0]), { type, error })
  }
  const { ends } = await run(() => undecodable('returned'), ['x'], { dlx: false, retry: undefined })
  assert.equal(ends[0].became, 'rejected')
})

test('a middleware sees why a body cannot be read', async () => {
  let seen
  const middleware = [(msg, next) => next().catch((error) => ((seen = error), Promise.reject(error)))]
  await run(typed(SCHEMAS.zod, () => {}), ['{}'], { middleware })
  assert.equal(seen.name, 'Undecodable')
  assert.ok(seen.cause instanceof ValidationError)
})

test('what cannot work is refused where it is written', () => {
  const refuses = (pattern, ...args) => assert.throws(() => typed(...args), pattern)
  refuses(/`schema` must be a Standard Schema.*, not one without `~standard`/, {}, () => {})
  refuses(/`schema` must be a Standard Schema.*, not undefined/, undefined, () => {})
  refuses(/the handler must be a function, not an object/, SCHEMAS.zod, {})
  refuses(/the handler is a generator function/, SCHEMAS.zod, function* () {})
  refuses(/there is no option `invalid`; did you mean `invalidBody`/, SCHEMAS.zod, () => {}, { invalid: 'park' })
  refuses(/`invalidBody` must be 'park' or 'retry'/, SCHEMAS.zod, () => {}, { invalidBody: 'drop' })
})
