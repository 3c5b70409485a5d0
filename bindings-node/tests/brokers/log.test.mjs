// What is logged: texts of publishers stay on their line, and steer no terminal.

import assert from 'node:assert/strict'
import { Console } from 'node:console'
import { readFileSync } from 'node:fs'
import { Writable } from 'node:stream'

import pino from 'pino'
import { defer, fixed, setLogger } from 'retryrmq'
import winston from 'winston'

import { client, queue, test, until } from './broker.mjs'

const EVIL = '\u001b[2J\u001b]0;owned\u0007 a\rb\nretryrmq: forged\u2028\u202e\u009b1m'

test('what publishers write stays on its line of the log', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const lines = []
  const keep = (line) => lines.push(line)
  setLogger({ error: keep, warn: keep, info: keep, debug: keep })
  t.after(() => setLogger(false))
  const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 1 }) }
  const consumer = await rmq.consume(options, (msg) => {
    throw new Error(`cannot read ${msg.text()}`)
  })
  consumer.on('parked', (event) => {
    throw new Error(event.error)
  })
  await rmq.publish(orders, EVIL, { messageId: EVIL })
  await until('it is parked', () => consumer.stats().parked === 1)
  const failures = () => lines.filter((line) => / failed: /.test(line))
  await until('all is logged', () => lines.some((line) => line.includes('a listener of parked')) && failures().length >= 2)
  const failed = failures()
  assert.equal(failed.length, 2)
  assert.match(failed[0], /^retryrmq: attempt 1 of 2 of message \\x1b\[2J.*\\nretryrmq: forged.* failed: Error: cannot read .*\\r.*forged.*; retry in 50ms$/)
  assert.match(failed[1], /; parked as exhausted$/)
  assert.ok(lines.some((line) => /the stack of .*\n {4}at /s.test(line)))
  for (const line of lines) {
    assert.doesNotMatch(line, /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u2028-\u202e]/)
    const [, ...others] = line.split('\n')
    for (const other of others) assert.match(other, /^\s/, line)
  }
})

test('the lines are those of bindings-common/table.json', async (t) => {
  const { levels, lines } = JSON.parse(readFileSync(new URL('../table.json', import.meta.url), 'utf8'))
  const rmq = await client(t)
  const said = []
  const keep = (level) => (line) => said.push(`${level} ${line}`)
  setLogger({ error: keep('error'), warn: keep('warn'), info: keep('info'), debug: keep('debug') })
  t.after(() => setLogger(false))
  const retry = fixed('200ms', { retries: 1 })
  const fails = () => {
    throw new Error('no answer')
  }
  let deferred = false
  const defers = () => {
    if (deferred) return
    deferred = true
    throw defer('100ms')
  }
  for (const [what, options, handler] of [
    ['retried', { dlx: true, retry }, fails],
    ['parked', { dlx: true, retry }, fails],
    ['dropped', { dlx: true, retry, park: false }, fails],
    ['rejected', {}, fails],
    ['deferred', { dlx: true, retry }, defers],
  ]) {
    const orders = await queue(t)
    const consumer = await rmq.consume({ ...options, queue: orders }, handler)
    await rmq.publish(orders, 'x', { messageId: '4711' })
    const line = `${levels[what]} retryrmq: ${lines[what].replace('orders', orders)}`
    await until(`${line} is logged`, () => said.includes(line))
    await consumer.close()
  }
})

test('only a consumer that was told nothing of dlx warns at its start', async (t) => {
  const rmq = await client(t)
  const warned = []
  const ignore = () => {}
  setLogger({ error: (line) => warned.push(line), warn: (line) => warned.push(line), info: ignore, debug: ignore })
  t.after(() => setLogger(false))
  for (const options of [{ dlx: true }, { dlx: false }, {}]) {
    const orders = await queue(t)
    const consumer = await rmq.consume({ ...options, queue: orders }, () => {})
    await consumer.close()
    if ('dlx' in options) continue
    const [line] = await until('the warning is logged', () => (warned.length > 0 ? warned : undefined))
    assert.match(line, /dlx was not set/)
    assert.ok(line.includes(orders), line)
  }
  assert.equal(warned.length, 1)
})

/** Where a logger writes JSON, a line for each object. */
function sink() {
  const written = []
  const write = (chunk, _, done) => {
    for (const line of chunk.toString().split('\n').filter(Boolean)) written.push(JSON.parse(line))
    done()
  }
  return { stream: new Writable({ write }), written }
}

const LOGGERS = {
  pino: (stream) => [pino({ level: 'debug', base: null, timestamp: false, messageKey: 'message' }, stream), { fields: 'first' }],
  winston: (stream) => {
    const transports = [new winston.transports.Stream({ stream })]
    return [winston.createLogger({ level: 'debug', format: winston.format.json(), transports }), { fields: 'last' }]
  },
}

for (const [name, made] of Object.entries(LOGGERS)) {
  test(`${name} gets what a line is about as fields`, async (t) => {
    const [rmq, orders] = [await client(t), await queue(t)]
    const { stream, written } = sink()
    setLogger(...made(stream))
    t.after(() => setLogger(false))
    const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 1 }), pause: { failures: 0, window: 1, duration: '50ms' } }
    const consumer = await rmq.consume(options, (msg) => {
      throw new RangeError(`cannot read ${msg.text()}`)
    })
    consumer.on('parked', () => {
      throw new TypeError('no alert')
    })
    await rmq.publish(orders, EVIL, { messageId: '4711' })
    const line = (pattern) =>
      until(`a line is ${pattern}`, () => written.find(({ message, queue }) => queue === orders && pattern.test(message)))

    // Of the native half.
    const { level: _, ...pausing } = await line(/^retryrmq: too many attempts fail; pausing$/)
    assert.deepEqual(pausing, { message: 'retryrmq: too many attempts fail; pausing', queue: orders, pause: '50ms' })
    // Of handlers and listeners.
    const { message, messageId, attempt, errorType, error, stack } = await line(/: the stack of attempt 2 of message 4711$/)
    assert.equal(message, `retryrmq: ${orders}: the stack of attempt 2 of message 4711`)
    assert.deepEqual([messageId, attempt, errorType], ['4711', 2, 'RangeError'])
    assert.match(error, /^cannot read \\u001b\[2J/)
    assert.match(stack, /^RangeError: cannot read .*\n {4}at /s)
    for (const [number, nextStep] of [[1, 'retried'], [2, 'parked']]) {
      const { message, level: _, ...fields } = await line(new RegExp(`^retryrmq: attempt ${number} of 2 of message 4711 in .* failed: RangeError: `))
      const { error, ...about } = fields
      assert.deepEqual(about, { queue: orders, messageId: '4711', attempt: number, errorType: 'RangeError', nextStep })
      assert.match(error, /^cannot read \\x1b\[2J/)
    }
    const failed = await line(/a listener of parked threw$/)
    assert.deepEqual([failed.event, failed.error], ['parked', 'no alert'])
    assert.match(failed.stack, /^TypeError: no alert\n {4}at /)
    for (const text of written.flatMap(Object.values).filter((value) => typeof value === 'string')) {
      assert.doesNotMatch(text, /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u2028-\u202e]/)
    }
  })
}

test('a logger is called as its option says, and a line without fields is only a text', async (t) => {
  const calls = []
  const logger = Object.fromEntries(['error', 'warn', 'info', 'debug'].map((level) => [level, (...args) => calls.push(args)]))
  t.after(() => setLogger(false))
  for (const [fields, isLine] of [
    ['none', ([text, ...rest]) => typeof text === 'string' && rest.length === 0],
    ['first', ([about, text]) => typeof about === 'object' && typeof text === 'string'],
    ['last', ([text, about]) => typeof text === 'string' && (about === undefined || Object.keys(about).length > 0)],
  ]) {
    const [rmq, orders] = [await client(t), await queue(t)]
    calls.length = 0
    setLogger(logger, { fields })
    const consumer = await rmq.consume({ queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }) }, () => {
      throw new Error('no')
    })
    await rmq.publish(orders, 'x')
    await until('it is parked', () => consumer.stats().parked === 1)
    await until('it is logged', () => calls.some((args) => args.some((part) => /the stack of/.test(part))))
    for (const args of calls) assert.ok(isLine(args), JSON.stringify(args))
  }
})

/** A console that writes to this stream. */
const printing = (stream) => [new Console({ stdout: stream, stderr: stream }), { fields: 'last' }]
const splat = (stream) => {
  const { format, transports } = winston
  return [
    winston.createLogger({ level: 'debug', format: format.combine(format.splat(), format.json()), transports: [new transports.Stream({ stream })] }),
    { fields: 'last' },
  ]
}

for (const [name, made] of Object.entries({ ...LOGGERS, 'winston with splat': splat, console: printing })) {
  test(`${name} formats no fields into the text`, async (t) => {
    const [rmq, orders] = [await client(t), await queue(t)]
    let written = ''
    const write = (chunk, _, done) => {
      written += chunk
      done()
    }
    setLogger(...made(new Writable({ write })))
    t.after(() => setLogger(false))
    const consumer = await rmq.consume({ queue: orders, dlx: true, retry: fixed('50ms', { retries: 0 }) }, () => {
      throw new RangeError('at %s %d%% %j %o%')
    })
    await rmq.publish(orders, 'x', { messageId: '4711' })
    await until('it is parked', () => consumer.stats().parked === 1)
    const isThere = () => ['retryrmq: attempt 1 of 1 of message 4711', 'nextStep'].every((part) => written.includes(part)) && written
    const logged = await until('it is logged', isThere)
    const text = made === LOGGERS.pino ? 'at %s %d%% %j %o%; parked' : 'at \\u0025s \\u0025d\\u0025% \\u0025j \\u0025o%; parked'
    const shown = name === 'console' ? text : text.replaceAll('\\', '\\\\') // as JSON has it
    assert.ok(logged.includes(shown), logged)
  })
}

test('a logger that cannot work is refused', () => {
  assert.throws(() => setLogger(console, { fields: 'middle' }), /^InvalidOptionError: `fields` must be 'first', 'last' or 'none'$/)
  assert.throws(() => setLogger(console, { field: 'first' }), /there is no option `field`; did you mean `fields`/)
  assert.throws(() => setLogger(console, null), /the options of setLogger\(\) must be an object, not null/)
  assert.throws(() => setLogger({ warn() {} }), /`logger` must be an object with error, warn, info and debug, not one without `error`/)
})

test('a logger that rejects ends nothing', async (t) => {
  const [rmq, orders] = [await client(t), await queue(t)]
  const unhandled = []
  const hear = (error) => unhandled.push(error)
  process.on('unhandledRejection', hear)
  t.after(() => process.off('unhandledRejection', hear))
  let said = 0
  const away = async () => {
    said++
    throw new Error('the log server is away')
  }
  setLogger({ error: away, warn: away, info: away, debug: away })
  t.after(() => setLogger(false))
  const consumer = await rmq.consume({ queue: orders, dlx: true, retry: fixed('50ms', { retries: 1 }) }, () => {
    throw new Error('no')
  })
  await rmq.publish(orders, 'a')
  await until('it is parked', () => consumer.stats().parked === 1)
  await until('it is logged', () => said >= 2)
  // A rejection that nobody hears of is told after the turn in which it came.
  await new Promise((resolve) => setImmediate(resolve))
  assert.deepEqual(unhandled, [])
})
