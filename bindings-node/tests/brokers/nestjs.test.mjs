// NestJS on a broker: its own clients, replies, ends of processes, health.

import assert from 'node:assert/strict'
import { isDeepStrictEqual } from 'node:util'

import { Controller } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { ClientProxyFactory, RmqRecordBuilder, RpcException, Transport } from '@nestjs/microservices'
import { HealthCheckService, TerminusModule } from '@nestjs/terminus'
import { Client } from 'retryrmq'
import {
  RetryConsume,
  RetryRmqHealthIndicator,
  RetryRmqModule,
  RetryRmqPublisher,
  getClientToken,
  getHealthToken,
  getPublisherToken,
} from 'retryrmq/nestjs'
import { firstValueFrom, timeout, toArray } from 'rxjs'

import { decorated, method, module, silent } from '../nestjs/nest.mjs'
import { URL_, client, cut, declare, deferred, manage, program, queue, test, until, vhost } from './broker.mjs'
import { at, proxy } from './network.mjs'

const policy = { dlx: true, retry: 'fixed(100ms, retries=2)' }

/** An application with this module, closed with the test. */
async function application(t, metadata, options = URL_) {
  const imports = [...(metadata.imports ?? []), RetryRmqModule.forRoot(options)]
  const app = await NestFactory.createApplicationContext(module({ ...metadata, imports }), { logger: silent, abortOnError: false })
  t.after(() => app.close())
  return app
}

/** A provider whose method consumes. */
function consumer(name, handle, options = policy) {
  class Orders {
    handle(...args) {
      return handle(...args)
    }
  }
  method(Orders, 'handle', RetryConsume(name, options))
  return Orders
}

/** Nest's own client of this queue. */
async function nestClient(t, name, options = {}) {
  const rmq = ClientProxyFactory.create({
    transport: Transport.RMQ,
    options: { urls: [URL_], queue: name, noAssert: true, persistent: true, ...options },
  })
  await rmq.connect()
  t.after(() => rmq.close())
  return rmq
}

const emit = (rmq, pattern, data) => firstValueFrom(rmq.emit(pattern, data), { defaultValue: undefined })
/** Why messages of a queue are parked. */
async function reasons(rmq, name) {
  const all = []
  for await (const { reason } of rmq.parked(name)) all.push(reason)
  return all
}
/** How many messages of a queue were acknowledged or parked. */
function ended(rmq, name) {
  const counted = rmq.metricsText().matchAll(/^retryrmq_messages_(?:acked|parked)_total\{[^}]*queue="([^"]*)"[^}]*\} (\d+)$/gm)
  return [...counted].filter(([, queue]) => queue === name).reduce((sum, [, , count]) => sum + Number(count), 0)
}
/** All values of a reply, or its error. */
const send = (rmq, pattern, data) =>
  firstValueFrom(rmq.send(pattern, data).pipe(toArray(), timeout(120_000))).catch((error) => ({ error }))

for (const type of ['quorum', 'classic']) {
  test(`what Nest's client emits is handled and retried (${type})`, async (t) => {
    const name = await queue(t, type)
    const seen = []
    const Orders = consumer(name, ({ id }, { attempt, pattern, headers }) => {
      seen.push([id, attempt, pattern, headers.tenant])
      if (attempt < 3) throw new Error('busy')
    })
    await application(t, { controllers: [decorated(Orders, Controller())] })
    const rmq = await nestClient(t, name)
    const data = new RmqRecordBuilder({ id: 7 }).setOptions({ headers: { tenant: 'eu' } }).build()
    await emit(rmq, { event: 'created' }, data)
    await until('it is handled at last', () => seen.length === 3)
    const pattern = '{"event":"created"}'
    assert.deepEqual(
      seen,
      [1, 2, 3].map((attempt) => [7, attempt, pattern, 'eu']),
    )
  })
}

for (const replies of ['by the connection', 'to a queue']) {
  test(`a request gets one reply, after its last attempt (${replies})`, async (t) => {
    const name = await queue(t)
    const attempts = []
    const Sums = consumer(name, ({ numbers, fails }, { attempt }) => {
      attempts.push(attempt)
      if (fails === 'at once') throw new RpcException('no numbers')
      if (fails === 'always' || attempt < 3) throw new Error('busy')
      return numbers.reduce((sum, number) => sum + number, 0)
    })
    const app = await application(t, { providers: [Sums] })
    const options = replies === 'to a queue' ? { replyQueue: await queue(t) } : {}
    const rmq = await nestClient(t, name, options)
    assert.deepEqual(await send(rmq, 'sum', { numbers: [1, 2, 3] }), [6])
    assert.deepEqual(attempts.splice(0), [1, 2, 3])
    assert.deepEqual(await send(rmq, 'sum', { fails: 'always' }), { error: { status: 'error', message: 'Internal server error' } })
    assert.deepEqual(attempts.splice(0), [1, 2, 3])
    assert.deepEqual(await send(rmq, 'sum', { fails: 'at once' }), { error: { status: 'error', message: 'no numbers' } })
    assert.deepEqual(attempts.splice(0), [1])
    await until('both are parked', async () => isDeepStrictEqual(await reasons(app.get(Client), name), ['exhausted', 'fatal']))
    await rmq.close() // before its queue is deleted, or it never ends
  })
}

test('a request has one message in its reply queue, however it ends', async (t) => {
  const [name, limited, replies] = [await queue(t), await queue(t), await queue(t)]
  const handle = (what, { attempt, signal }) => {
    if (what === 'flaky' && attempt < 3) throw new Error('busy')
    if (what === 'fails') throw new Error('broken')
    if (what === 'hangs') return new Promise((resolve) => signal.addEventListener('abort', () => resolve('too late')))
    return what === 'big' ? 7n : what
  }
  const providers = [consumer(name, handle), consumer(limited, handle, { ...policy, handlerTimeout: 200 })]
  const rmq = (await application(t, { providers })).get(Client)
  const all = ['big', 'fails', 'flaky', 'hangs', 'works']
  for (const what of all) {
    const body = JSON.stringify({ pattern: 'do', data: what, id: what })
    await rmq.publish(what === 'hangs' ? limited : name, body, { replyTo: replies, correlationId: what })
  }
  await until('all have ended', () => ended(rmq, name) + ended(rmq, limited) === all.length)
  const wanted = { count: 100, ackmode: 'ack_requeue_true', encoding: 'auto' }
  const answered = await manage('POST', `queues/${vhost}/${replies}/get`, wanted)
  assert.deepEqual(answered.map(({ properties }) => properties.correlation_id).sort(), all)
})

test('a reply queue that is full does not have the work done again', async (t) => {
  const name = await queue(t)
  const replies = `${name}.replies`
  await declare(replies, { 'x-queue-type': 'classic', 'x-max-length': 1, 'x-overflow': 'reject-publish' })
  const attempts = []
  const app = await application(t, { providers: [consumer(name, (n, { attempt }) => void attempts.push([n, attempt]))] })
  const rmq = app.get(Client)
  await rmq.publish(replies, 'full')
  for (const n of [1, 2]) await rmq.publish(name, JSON.stringify({ pattern: 'do', data: n, id: '1' }), { replyTo: replies })
  await until('both are acknowledged', () => ended(rmq, name) === 2)
  assert.deepEqual(attempts.sort(), [
    [1, 1],
    [2, 1],
  ])
})

test('middleware of the client decides about the reply, too', async (t) => {
  const name = await queue(t)
  const attempts = []
  const transaction = async ({ attempt }, next) => {
    await next()
    attempts.push(attempt)
    if (attempt < 3) throw new Error('no commit')
  }
  const Orders = consumer(name, (_, { attempt }) => attempt)
  await application(t, { providers: [Orders] }, { url: URL_, middleware: [transaction] })
  assert.deepEqual(await send(await nestClient(t, name), 'sum', 1), [3])
  assert.deepEqual(attempts, [1, 2, 3])
})

test('a request that is too old to be retried gets its reply', async (t) => {
  const name = await queue(t)
  let attempts = 0
  const options = { dlx: true, retry: 'fixed(1s, retries=50, max_age=2s)' }
  await application(t, { providers: [consumer(name, () => Promise.reject(new Error(`attempt ${++attempts}`)), options)] })
  const rmq = await nestClient(t, name)
  assert.deepEqual(await send(rmq, 'sum', 1), { error: { status: 'error', message: 'Internal server error' } })
  assert.ok(attempts > 1 && attempts < 50, `${attempts} attempts`)
})

test('a request whose last attempt takes too long gets its reply', async (t) => {
  const name = await queue(t)
  const options = { dlx: true, retry: 'fixed(1s, retries=0)', handlerTimeout: 50 }
  await application(t, { providers: [consumer(name, () => new Promise(() => {}), options)] })
  const rmq = await nestClient(t, name)
  assert.deepEqual(await send(rmq, 'sum', 1), { error: { status: 'error', message: 'Internal server error' } })
})

for (const replies of ['by the connection', 'to a queue']) {
  test(`a request whose requester is gone is handled all the same (${replies})`, async (t) => {
    const name = await queue(t)
    const [began, end] = [deferred(), deferred()]
    let calls = 0
    const Slow = consumer(name, async () => {
      calls++
      began.resolve()
      await end.promise
      return 7
    })
    const app = await application(t, { providers: [Slow] })
    const replyQueue = `${name}.replies`
    if (replies === 'to a queue') await declare(replyQueue)
    const rmq = await nestClient(t, name, replies === 'to a queue' ? { replyQueue } : {})
    const waiting = rmq.send('slow', 1).subscribe({ error: () => {} })
    await began.promise
    waiting.unsubscribe()
    await rmq.close()
    if (replies === 'to a queue') await manage('DELETE', `queues/${vhost}/${replyQueue}`)
    end.resolve()
    await until('it is acknowledged', () => app.get(Client).metricsText().includes(`retryrmq_messages_acked_total{queue="${name}"} 1`))
    assert.equal(calls, 1)
  })
}

test('a message whose pattern nobody handles is parked, and its requester is told', async (t) => {
  const name = await queue(t)
  const app = await application(t, { providers: [consumer(name, () => 1, { ...policy, pattern: 'known' })] })
  const rmq = await nestClient(t, name)
  const expected = { status: 'error', message: `no method handles the pattern "other" of ${name}` }
  assert.deepEqual(await send(rmq, 'known', 1), [1])
  assert.deepEqual(await send(rmq, 'other', 1), { error: expected })
  await app.get(Client).publish(name, 'no json')
  await until('both are parked', async () => isDeepStrictEqual(await reasons(app.get(Client), name), ['undecodable', 'undecodable']))
})

test('what is under way when the connection is lost is handled and answered', async (t) => {
  const name = await queue(t)
  const again = deferred()
  let calls = 0
  const Slow = consumer(name, async () => {
    if (++calls > 1) again.resolve()
    await again.promise
    return calls
  })
  await application(t, { providers: [Slow] })
  const rmq = await nestClient(t, name)
  const reply = send(rmq, 'slow', 1)
  await until('it is handled', () => calls === 1)
  await cut(name)
  assert.deepEqual(await reply, [2])
})

test('several clients, by name', async (t) => {
  const [one, two] = [await queue(t), await queue(t)]
  const seen = []
  const providers = [
    consumer(one, (data) => void seen.push(`one ${data}`)),
    consumer(two, (data) => void seen.push(`two ${data}`), { ...policy, client: 'second' }),
  ]
  const useFactory = async (url) => url
  const second = RetryRmqModule.forRootAsync({ name: 'second', inject: ['url'], useFactory, imports: [urls()] })
  const app = await application(t, { providers, imports: [second] })
  assert.notEqual(app.get(Client), app.get(getClientToken('second')))
  assert.equal(app.get(getPublisherToken('second')).client, app.get(getClientToken('second')))
  assert.notEqual(app.get(getHealthToken('second')), app.get(RetryRmqHealthIndicator))
  await app.get(RetryRmqPublisher).publish(two, 2)
  await app.get(getPublisherToken('second')).publish(one, 1, { pattern: 'any' })
  await until('both are handled', () => seen.length === 2)
  assert.deepEqual(seen.sort(), ['one 1', 'two 2'])
})

/** A module with the URL, for a factory. */
const urls = () => module({ providers: [{ provide: 'url', useValue: URL_ }], exports: ['url'] })

test('health is that of the client, and names no broker', async (t) => {
  const way = await proxy(t)
  const app = await application(t, { imports: [TerminusModule.forRoot({ logger: false })] }, { url: at(way.place) })
  const indicator = app.get(RetryRmqHealthIndicator)
  const check = () => app.get(HealthCheckService, { strict: false }).check([() => indicator.isHealthy('rabbitmq')])
  assert.deepEqual((await check()).details, { rabbitmq: { status: 'up' } })
  way.close()
  await until('it is down', () => indicator.isHealthy('rabbitmq').rabbitmq.status === 'down')
  await assert.rejects(check(), (error) => {
    assert.deepEqual(error.getResponse().details, { rabbitmq: { status: 'down', message: 'not connected to the broker' } })
    return true
  })
})

test('an application whose queue is missing does not start', async (t) => {
  const name = `${await queue(t)}.missing`
  await assert.rejects(application(t, { providers: [consumer(name, () => {}, { ...policy, declare: false })] }), (error) => {
    assert.equal(error.name, 'QueueNotFoundError')
    assert.match(error.message, /^@RetryConsume\('.*'\) of Orders\.handle: /)
    return true
  })
})

/** All numbers that are left in a queue, in the end: when it was enough. */
async function rest(t, name, enough) {
  const rmq = await client(t)
  const seen = new Set()
  await rmq.consume({ queue: name, dlx: true }, (msg) => void seen.add(msg.json()))
  await until('what is left has come', () => enough(seen))
  return [...seen].sort((one, other) => one - other)
}

for (const scope of ['DEFAULT', 'REQUEST', 'TRANSIENT']) {
  test(`SIGTERM: what runs finishes, the rest is given back, and then what handlers use is closed (scope ${scope})`, async (t) => {
    const name = await queue(t)
    const rmq = await client(t)
    for (let n = 0; n < 20; n++) await rmq.publish(name, JSON.stringify(n))
    const { code, signal, text, errors } = await program('nestjs_app', [name, '2', scope], async (child, says) => {
      await says('began 1\n')
      child.kill('SIGTERM')
      await says('draining\n')
      child.kill('SIGCONT')
    })
    assert.deepEqual([code, signal, errors], [null, 'SIGTERM', ''])
    assert.deepEqual(text.trim().split('\n').sort(), ['began 0', 'began 1', 'closed', 'draining', 'ended 0', 'ended 1', 'ready'])
    assert.ok(text.endsWith('closed\n'), text)
    await rmq.publish(name, '20')
    const left = await rest(t, name, (seen) => seen.has(20))
    assert.deepEqual(
      left,
      [...Array(19).keys()].map((n) => n + 2),
    )
  })
}

test('SIGKILL while it works: nothing is lost', async (t) => {
  const name = await queue(t)
  const rmq = await client(t)
  for (let n = 0; n < 20; n++) await rmq.publish(name, JSON.stringify(n))
  const { signal, text } = await program('nestjs_app', [name, '5'], async (child, says) => {
    for (let n = 0; n < 5; n++) await says(`began ${n}\n`)
    child.kill('SIGCONT')
    await says('ended 7\n')
    child.kill('SIGKILL')
  })
  assert.equal(signal, 'SIGKILL')
  const ended = text.match(/(?<=^ended )\d+$/gm).map(Number)
  assert.ok(ended.length < 20, text)
  const all = [...Array(20).keys()]
  await rest(t, name, (seen) => all.every((n) => seen.has(n) || ended.includes(n)))
  assert.deepEqual(await reasons(rmq, name), [])
})
