// Bodies and headers there and back: what is published is what a handler sees.

import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import path from 'node:path'
import { test } from 'node:test'

import { Decimal } from 'retryrmq'
import { simulate } from 'retryrmq/testing'

const require = createRequire(import.meta.url)
const { readTable } = require(path.join(path.dirname(require.resolve('retryrmq')), 'values.js'))

/** What a handler sees of a message, or why it is refused. */
async function seen(input) {
  const result = await simulate({ queue: 'orders' }, () => {}, [input])
  return result.attempts[0].message
}

test('headers of every type', async () => {
  const headers = {
    text: 'tëxt 🐇',
    empty: '',
    yes: true,
    nothing: null,
    whole: 7,
    negative: -(2 ** 40),
    largest: Number.MAX_SAFE_INTEGER,
    large: 2n ** 62n,
    least: -(2n ** 63n),
    fraction: 1.5,
    huge: 1e300,
    bytes: Buffer.from([0, 255, 128]),
    when: new Date('2026-01-02T03:04:05Z'),
    decimal: new Decimal(314, 2),
    array: [1, 'two', [3n, null], { four: 4 }],
    table: { deep: { deeper: [true] } },
    ['__proto__']: 'a name like any other',
  }
  const msg = await seen({ body: '', headers })
  for (const [name, value] of Object.entries(headers)) {
    const expected = name === 'array' ? [1, 'two', [3, null], { four: 4 }] : value
    assert.deepEqual(msg.headers[name], expected, name)
  }
  assert.ok(Object.hasOwn(msg.headers, '__proto__'))
  assert.equal(Object.getPrototypeOf(msg.headers), Object.prototype)
  assert.equal(String(msg.headers.decimal), '3.14')
  assert.equal(String(new Decimal(5, 3)), '0.005')
})

test('headers that only others publish', () => {
  const values = {
    int8: ['b', [0xfb], -5],
    uint8: ['B', [200], 200],
    int16: ['s', [0xfe, 0xd4], -300],
    uint16: ['u', [0xea, 0x60], 60000],
    int32: ['I', [0xff, 0xfe, 0xee, 0x90], -70000],
    uint32: ['i', [0xee, 0x6b, 0x28, 0], 4000000000],
    float32: ['f', [0x3f, 0, 0, 0], 0.5],
    timestamp: ['T', [0, 0, 0, 1, 0, 0, 0, 0], new Date(2 ** 32 * 1000)],
    'beyond the calendar': ['T', [0xff, 0xff, 0, 0, 0, 0, 0, 0], 0xffff * 2 ** 48],
    'not UTF-8': ['S', [0, 0, 0, 4, 0x61, 0xff, 0xc3, 0xbc], Buffer.from([0x61, 0xff, 0xc3, 0xbc])],
    'UTF-8 that looks like a repair': ['S', [0, 0, 0, 3, 0xef, 0xbf, 0xbd], '\ufffd'],
    array: ['A', [0, 0, 0, 3, 0x42, 7, 0x56], [7, null]],
    void: ['V', [], null],
  }
  const fields = Object.entries(values).map(([name, [tag, bytes]]) =>
    Buffer.concat([Buffer.from([name.length]), Buffer.from(name + tag), Buffer.from(bytes)]),
  )
  const table = Buffer.concat([Buffer.from('xx'), ...fields, Buffer.from('y')])
  const expected = Object.fromEntries(Object.entries(values).map(([name, [, , value]]) => [name, value]))
  const read = readTable(table, 2, table.length - 1)
  assert.deepEqual(read, expected)
  assert.notEqual(read['not UTF-8'].buffer, table.buffer)
})

test('integers are numbers where that is exact, otherwise bigints', async () => {
  const msg = await seen({ body: '', headers: { a: 7n, b: 2n ** 53n, c: -(2n ** 53n) + 1n, d: 2n ** 53n - 1n } })
  assert.deepEqual(
    [msg.headers.a, msg.headers.b, msg.headers.c, msg.headers.d],
    [7, 2n ** 53n, Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER],
  )
})

test('headers that AMQP cannot represent are refused by name', async () => {
  const bad = async (headers, says, code = 'invalid_option') =>
    assert.rejects(seen({ body: '', headers }), (error) => {
      assert.match(error.message, says)
      assert.equal(error.code, code)
      return true
    })
  await bad({ n: 2n ** 63n }, /headers\["n"\]` does not fit/)
  await bad({ n: Number.NaN }, /headers\["n"\]` is NaN/)
  await bad({ n: -Infinity }, /headers\["n"\]` is -Infinity/)
  await bad({ f: () => {} }, /headers\["f"\]` must be .* not a function/)
  await bad({ s: Symbol('x') }, /headers\["s"\]`/)
  await bad({ a: [1, undefined] }, /headers\["a"\]\[1\]`/)
  await bad({ m: new Map() }, /not a Map/)
  await bad({ d: new Date(Number.NaN) }, /invalid date/)
  for (const time of [Infinity, -Infinity, 1e300, 8.64e15 + 1, 5n]) {
    const date = Object.assign(new Date(0), { getTime: () => time })
    await bad({ d: date }, /^`headers\["d"\]` is an invalid date$/)
    await assert.rejects(seen({ body: '', timestamp: date }), /^InvalidOptionError: `timestamp` is an invalid date$/)
  }
  await bad({ d: new Date(-1) }, /before 1970/)
  await bad({ ['x'.repeat(256)]: 1 }, /longer than 255 bytes/)
  let deep = {}
  for (let level = 0; level < 40; level++) deep = { deep }
  await bad(deep, /nested more than 32 levels/)
  const circle = {}
  circle.circle = circle
  await bad(circle, /nested more than 32 levels/)
  await bad(new Map([['a', 1]]), /`headers` must be an object, not a Map/)
  await bad(new Date(), /`headers` must be an object, not a Date/)
  await bad({ a: [1, , 3] }, /headers\["a"\]\[1\]` must be .* not undefined/)
  await bad({ o: Object.create(Object.create(Object.create(null))) }, /headers\["o"\]` must be .* another prototype/)
  await bad([], /`headers` must be an object, not an array/)
})

test('bodies in whatever memory', async () => {
  const shared = new SharedArrayBuffer(8)
  const view = new Uint8Array(shared, 2, 3)
  view.set([1, 2, 3])
  assert.deepEqual([...(await seen(view)).body], [1, 2, 3])
  assert.deepEqual([...(await seen(Buffer.from(new Uint8Array([9, 8, 7, 6]).buffer, 1, 2))).body], [8, 7])
  assert.deepEqual([...(await seen(new Uint16Array([258]))).body], [2, 1])
  assert.deepEqual([...(await seen(new Uint8Array([5]).buffer)).body], [5])
  assert.deepEqual([...(await seen({ body: new DataView(new ArrayBuffer(2)) })).body], [0, 0])
  assert.equal((await seen('tëxt')).text(), 'tëxt')
  assert.equal((await seen('lone \ud800')).text(), 'lone \ufffd')
  assert.equal((await seen('')).body.length, 0)
  const large = Buffer.alloc(100_000, 'abc')
  assert.deepEqual((await seen(large)).body, large)
  assert.deepEqual((await seen('{"a": [1]}')).json(), { a: [1] })
  const given = new Uint8Array(8)
  structuredClone(given, { transfer: [given.buffer] })
  await assert.rejects(seen(given), { name: 'InvalidTypeError', message: /`body` is in memory that was transferred/ })
  await assert.rejects(seen({ body: '', headers: { given } }), /`headers\["given"\]` is in memory that was transferred/)
  await assert.rejects(seen({ body: { a: 1 } }), /`body` must be bytes or a string, not an object; JSON.stringify/)
})

test('a body is the handler’s own', async () => {
  const bodies = []
  const handle = (msg) => {
    bodies.push(msg.text())
    msg.body.fill(0)
    throw new Error('again')
  }
  const options = { queue: 'orders', dlx: true, retry: 'fixed(1s, retries=1)' }
  await simulate(options, handle, ['small', 'x'.repeat(10_000)])
  assert.deepEqual(
    bodies.map((body) => body.slice(0, 5)),
    ['small', 'xxxxx', 'small', 'xxxxx'],
  )
})

test('properties', async () => {
  const msg = await seen({
    body: 'x',
    messageId: 'id',
    contentType: 'application/json',
    contentEncoding: 'gzip',
    correlationId: 'c',
    replyTo: 'r',
    expiration: '1m',
    priority: 3,
    timestamp: new Date('2026-01-02T03:04:05.678Z'),
    type: 't',
    appId: 'a',
    userId: 'u',
    persistent: false,
    exchange: 'shop',
    routingKey: 'eu.orders',
  })
  assert.deepEqual(msg.properties, {
    messageId: 'id',
    contentType: 'application/json',
    contentEncoding: 'gzip',
    correlationId: 'c',
    replyTo: 'r',
    expiration: '60000',
    priority: 3,
    timestamp: new Date('2026-01-02T03:04:05Z'),
    type: 't',
    appId: 'a',
    userId: 'u',
    deliveryMode: 1,
  })
  assert.deepEqual([msg.exchange, msg.routingKey, msg.messageId, msg.queue], ['shop', 'eu.orders', 'id', 'orders'])
})

test('a part of a millisecond is not the end at once', async () => {
  assert.equal((await seen({ body: 'x', expiration: 0.4 })).properties.expiration, '1')
  assert.equal((await seen({ body: 'x', expiration: 0 })).properties.expiration, '0')
})

test('what is transferred from a message is its own', async () => {
  const { port1 } = new MessageChannel()
  const handle = (msg) => {
    const { body } = msg
    const { bytes } = msg.headers
    port1.postMessage([body, bytes], [body.buffer, bytes.buffer])
    assert.deepEqual([body.length, bytes.length], [0, 0])
    assert.deepEqual([msg.text(), msg.messageId], ['small', '7'])
  }
  const message = { body: 'small', headers: { bytes: Buffer.from('bytes') }, messageId: '7' }
  const result = await simulate({ queue: 'orders' }, handle, [message])
  port1.close()
  assert.equal(result.acked.length, 1)
})

test('properties that cannot work are refused by name', async () => {
  const bad = (options, says) => assert.rejects(seen({ body: '', ...options }), says)
  await bad({ messageId: 7 }, /`messageId` must be a string, not a number/)
  await bad({ messageId: 'x'.repeat(256) }, /`messageId` is longer than 255 bytes/)
  await bad({ priority: 256 }, /`priority` must be a whole number between 0 and 255/)
  await bad({ timestamp: 5 }, /`timestamp` must be a Date/)
  await bad({ delay: -1 }, /`delay` cannot be -1 ms/)
  await bad({ exchange: 'x', delay: '1s' }, /^InvalidOptionError: `delay`: .*cannot be delayed/)
  await bad({ delay: '5000d' }, /^InvalidOptionError: `delay`: .*longer than 365d/)
  for (const name of ['exchange', 'routingKey']) {
    await bad({ [name]: 'x'.repeat(256) }, (error) => error instanceof RangeError && error.message.startsWith(`\`${name}\``))
  }
  await bad({ timeout: 0 }, /`timeout` must be longer than 0/)
  await bad({ timeout: 'soon' }, /`timeout`/)
  await bad({ mandatory: 'no' }, /`mandatory` must be true or false/)
  await bad({ message_id: 'x' }, /no option `message_id`/)
})
