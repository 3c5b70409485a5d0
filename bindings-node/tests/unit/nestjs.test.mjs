// Methods that consume in NestJS, without a broker.

import assert from 'node:assert/strict'
import { test } from 'node:test'

import {
  BadRequestException,
  Catch,
  ConflictException,
  Controller,
  Inject,
  Injectable,
  InternalServerErrorException,
  Scope,
  UseFilters,
  UseGuards,
  UseInterceptors,
  UsePipes,
} from '@nestjs/common'
import { APP_FILTER, APP_GUARD, APP_INTERCEPTOR, APP_PIPE, REQUEST } from '@nestjs/core'
import { BaseRpcExceptionFilter, Ctx, Payload, RpcException } from '@nestjs/microservices'
import { Test } from '@nestjs/testing'
import { Client, park } from 'retryrmq'
import { RetryConsume, RetryRmqContext, RetryRmqModule, RetryRmqPublisher, RetryRmqTesting } from 'retryrmq/nestjs'
import { EMPTY, Observable, from, of, tap, throwError } from 'rxjs'

import { decorated, method, module, parameters, silent, simulated } from '../nestjs/nest.mjs'

const policy = { dlx: true, retry: 'fixed(1m, retries=2)' }
const request = (data, pattern = 'ship') => ({
  body: JSON.stringify({ pattern, data, id: 'r1' }),
  replyTo: 'replies',
  correlationId: 'r1',
})

/** A provider whose method handles `orders` in this way. */
function consumer(handle, options = policy, ...decorators) {
  class Orders {
    handle(...args) {
      return handle(...args)
    }
  }
  method(Orders, 'handle', RetryConsume('orders', options), ...decorators)
  return Orders
}

/** How each message ended, with its reason if it was parked. */
const ends = ({ ends }) => ends.map(({ became, reason }) => (reason === undefined ? became : `${became}: ${reason}`))

/** Runs such a provider on these messages. */
async function run(t, handle, inputs, options = policy, ...decorators) {
  const { rmq } = await simulated(t, { providers: [consumer(handle, options, ...decorators)] })
  return { ...(await rmq.simulate('orders', inputs)), replies: rmq.published.map(({ body }) => JSON.parse(body)) }
}

test('a method gets the payload and the context', async (t) => {
  const seen = []
  const handle = (data, context) => {
    assert.ok(context instanceof RetryRmqContext)
    seen.push([data, context.pattern, context.attempt, context.isRequest, context.headers.tenant, context.message.queue])
  }
  const { acked } = await run(t, handle, [
    { body: '{"pattern":{"b":2,"a":1},"data":{"id":7}}', headers: { tenant: 'eu' } },
    { body: '{"pattern":"lost","id":8}', routingKey: 'orders.eu' },
    '[1]',
    '{"data":1,"pattern":"p","more":2}',
  ])
  assert.equal(acked.length, 4)
  assert.deepEqual(seen, [
    [{ id: 7 }, '{"a":1,"b":2}', 1, false, 'eu', 'orders'],
    [{ pattern: 'lost', id: 8 }, 'orders.eu', 1, false, undefined, 'orders'],
    [[1], 'orders', 1, false, undefined, 'orders'],
    [{ data: 1, pattern: 'p', more: 2 }, 'orders', 1, false, undefined, 'orders'],
  ])
})

test('parameters are those of the decorators', async (t) => {
  const seen = []
  class Orders {
    handle(...args) {
      seen.push(args)
    }
  }
  Ctx()(Orders.prototype, 'handle', 0)
  Payload('id')(Orders.prototype, 'handle', 2)
  method(Orders, 'handle', RetryConsume('orders'))
  const { rmq } = await simulated(t, { providers: [Orders] })
  await rmq.simulate('orders', ['{"id":7}', 'null'])
  assert.deepEqual(
    seen.map(([context, nothing, id]) => [context.attempt, nothing, id]),
    [
      [1, undefined, 7],
      [1, undefined, undefined],
    ],
  )
})

test('classes of the same name have parameters of their own', async (t) => {
  const seen = []
  const consumers = ['orders', 'returns'].map((queue) => {
    class Same {
      handle(...args) {
        seen.push([queue, ...args])
      }
    }
    Payload(queue === 'orders' ? 'id' : 'name')(Same.prototype, 'handle', 0)
    method(Same, 'handle', RetryConsume(queue))
    return Same
  })
  const { rmq } = await simulated(t, { providers: consumers })
  for (const queue of ['orders', 'returns']) await rmq.simulate(queue, ['{"id":7,"name":"lamp"}'])
  assert.deepEqual(seen, [
    ['orders', 7],
    ['returns', 'lamp'],
  ])
})

test('the real policy decides, and the error of the handler is in the record', async (t) => {
  const { attempts, parked } = await run(t, () => Promise.reject(new RangeError('sold out')), ['{}'])
  assert.deepEqual(
    attempts.map(({ at }) => at),
    [0, 60_000, 120_000],
  )
  assert.equal(parked[0].reason, 'exhausted')
  assert.equal(parked[0].message.lastError, 'sold out')
})

test('pipes, guards, interceptors and filters run, of the application, the class and the method', async (t) => {
  const log = []
  const says = (name) => {
    const guard = { canActivate: (context) => (log.push(`guard ${name} ${context.getType()} ${context.switchToRpc().getData().id}`), true) }
    const interceptor = {
      intercept: (context, next) => {
        assert.ok(context.switchToRpc().getContext() instanceof RetryRmqContext)
        log.push(`before ${name} ${context.getHandler().name}`)
        return next.handle().pipe(tap(() => log.push(`after ${name}`)))
      },
    }
    const pipe = { transform: (value, { type }) => (type === 'body' && log.push(`pipe ${name}`), value) }
    class Filter {
      catch(error, host) {
        log.push(`filter ${name} ${host.getType()} ${error.message}`)
        throw error
      }
    }
    return { guard, interceptor, pipe, filter: new (decorated(Filter, Catch(RangeError)))() }
  }
  const [application, provided, own] = [says('application'), says('class'), says('method')]
  const Orders = consumer(
    ({ fails }) => {
      log.push('handler')
      if (fails) throw new RangeError('sold out')
    },
    { dlx: true, retry: 'fixed(1m, retries=0)' },
    UseGuards(own.guard),
    UseInterceptors(own.interceptor),
    UsePipes(own.pipe),
  )
  decorated(Orders, UseGuards(provided.guard), UseInterceptors(provided.interceptor), UsePipes(provided.pipe))
  const providers = [
    Orders,
    { provide: APP_GUARD, useValue: application.guard },
    { provide: APP_INTERCEPTOR, useValue: application.interceptor },
    { provide: APP_PIPE, useValue: application.pipe },
  ]
  const { rmq } = await simulated(t, { providers })
  assert.deepEqual(ends(await rmq.simulate('orders', ['{"id":7}'])), ['acked'])
  assert.deepEqual(log.splice(0), [
    ...['application', 'class', 'method'].map((name) => `guard ${name} rpc 7`),
    ...['application', 'class', 'method'].map((name) => `before ${name} handle`),
    ...['application', 'class', 'method'].map((name) => `pipe ${name}`),
    'handler',
    ...['method', 'class', 'application'].map((name) => `after ${name}`),
  ])
  for (const [where, filter, more] of [
    ['method', own.filter, (Class) => method(Class, 'handle', UseFilters(own.filter))],
    ['class', provided.filter, (Class) => decorated(Class, UseFilters(provided.filter))],
    ['application', application.filter, () => {}],
  ]) {
    const Failing = consumer(() => Promise.reject(new RangeError('sold out')), { dlx: true, retry: 'fixed(1m, retries=0)' })
    more(Failing)
    const all = where === 'application' ? [Failing, { provide: APP_FILTER, useValue: filter }] : [Failing]
    const failing = await simulated(t, { providers: all })
    assert.deepEqual(ends(await failing.rmq.simulate('orders', ['{}'])), ['parked: exhausted'])
    assert.deepEqual(log.splice(0), [`filter ${where} rpc sold out`])
  }
})

test('what is global by a call is, too', async (t) => {
  const log = []
  const guard = { canActivate: () => (log.push('guard'), true) }
  const imports = [RetryRmqModule.forTest()]
  const testing = await Test.createTestingModule({ imports, providers: [consumer(() => {})] }).setLogger(silent).compile()
  const app = testing.createNestMicroservice({ strategy: { listen: (done) => done(), close() {}, addHandler() {}, on() {}, unwrap() {} } })
  app.useGlobalGuards(guard)
  await app.init()
  t.after(() => app.close())
  await app.get(RetryRmqTesting).simulate('orders', ['1'])
  assert.deepEqual(log, ['guard'])
})

for (const kind of ['providers', 'controllers']) {
  test(`a guard with dependencies of its own guards ${kind}`, async (t) => {
    class Rights {
      may = () => false
    }
    class Guard {
      constructor(rights) {
        this.rights = rights
      }
      canActivate() {
        return this.rights.may()
      }
    }
    parameters(decorated(Guard, Injectable()), 'constructor', Rights)
    let handled = 0
    const Orders = consumer(() => void handled++, policy, UseGuards(Guard))
    if (kind === 'controllers') decorated(Orders, Controller())
    const Feature = module({ [kind]: [Orders], providers: kind === 'providers' ? [Orders, Rights] : [Rights] })
    const { rmq } = await simulated(t, { imports: [Feature] })
    assert.deepEqual(ends(await rmq.simulate('orders', ['1'])), ['parked: fatal'])
    assert.equal(handled, 0)
  })
}

test('a pipe sees the type of the payload, and what it returns is handled', async (t) => {
  class Order {}
  const seen = []
  const pipe = {
    transform: (value, { metatype }) => {
      if (metatype !== Order) return value
      if (value.id === undefined) throw new BadRequestException(['id is missing', 'so is the rest']) // as ValidationPipe does
      return Object.assign(new Order(), value)
    },
  }
  const Orders = consumer((order) => void seen.push(order), policy, UsePipes(pipe))
  parameters(Orders, 'handle', Order, Object)
  const { rmq } = await simulated(t, { providers: [Orders] })
  const { ends: all, parked } = await rmq.simulate('orders', ['{"id":7}', '{}'])
  assert.deepEqual(
    all.map(({ became }) => became),
    ['acked', 'parked'],
  )
  assert.ok(seen[0] instanceof Order)
  assert.equal(parked[0].reason, 'fatal')
  assert.equal(parked[0].message.lastError, 'id is missing; so is the rest')
})

for (const [what, error, expected] of [
  ['an exception of HTTP that says that the message is wrong', new BadRequestException(), ['parked: fatal']],
  ['a conflict, which passes', new ConflictException(), ['parked: exhausted']],
  ['an error of the server', new InternalServerErrorException(), ['parked: exhausted']],
  ['an RpcException without a requester', new RpcException('no'), ['parked: exhausted']],
  ['any other error', new Error('no'), ['parked: exhausted']],
]) {
  test(`what is fatal: ${what}`, async (t) => {
    assert.deepEqual(ends(await run(t, () => Promise.reject(error), ['1'])), expected)
  })
}

test('which errors are fatal can be chosen', async (t) => {
  class Unknown extends Error {}
  const isFatal = (error, { attempt }) => error.code === 'gone' && attempt === 2
  const handle = ({ code }) => Promise.reject(code === 'unknown' ? new Unknown() : Object.assign(new BadRequestException(), { code }))
  const result = await run(t, handle, ['{"code":"gone"}', '{"code":"other"}', '{"code":"unknown"}'], { ...policy, isFatal, fatal: Unknown })
  assert.deepEqual(ends(result), ['parked: fatal', 'parked: exhausted', 'parked: fatal'])
  assert.deepEqual(
    [0, 1, 2].map((index) => result.attemptsOf(index).length),
    [2, 3, 1],
  )
})

test('without dlx a failed message is rejected', async (t) => {
  assert.deepEqual(ends(await run(t, () => Promise.reject(new BadRequestException()), ['1'], {})), ['rejected'])
})

test('signals of the context, and a filter of everything leaves them alone', async (t) => {
  class Everything {
    catch() {
      return of('handled')
    }
  }
  const handle = (what, context) => {
    if (what === 'park') context.park('ask the customer')
    if (what === 'returned') return park('ask the customer')
    if (what === 'undecodable') context.undecodable('version 9')
    if (what === 'later' && context.attempt === 1) context.retryAfter('3s')
    if (what === 'not yet') context.defer('1m')
  }
  const options = { ...policy, deferLimit: 2 }
  const inputs = ['"park"', '"returned"', '"undecodable"', '"later"', '"not yet"']
  const result = await run(t, handle, inputs, options, UseFilters(decorated(Everything, Catch())))
  assert.deepEqual(ends(result), ['parked: requested', 'parked: requested', 'parked: undecodable', 'acked', 'parked: exhausted'])
  assert.equal(result.attemptsOf(3)[0].delay, 3000)
})

test('what a filter returns is the result', async (t) => {
  class Answer {
    catch(error) {
      if (error.message === 'seen') return undefined
      return error.message === 'fine' ? of({ was: 'wrong' }) : throwError(() => new Error('translated'))
    }
  }
  const filter = UseFilters(decorated(Answer, Catch()))
  const handle = (text) => Promise.reject(new Error(text))
  const result = await run(t, handle, [request('fine'), '"bad"', '"seen"'], policy, filter)
  assert.deepEqual(ends(result), ['acked', 'parked: exhausted', 'parked: exhausted'])
  assert.deepEqual(result.replies, [{ response: { was: 'wrong' }, isDisposed: true }])
  assert.deepEqual(
    result.parked.map(({ message }) => message.lastError),
    ['translated', 'seen'],
  )
})

for (const [what, nothing] of [
  ['nothing', () => undefined],
  ['a promise of nothing', async () => undefined],
  ['an Observable of nothing', () => EMPTY],
  ['an Observable of a promise of nothing', () => from(Promise.resolve())],
]) {
  test(`a filter that returns ${what} leaves the failure as it is`, async (t) => {
    const filter = UseFilters(decorated(class { catch = nothing }, Catch()))
    const result = await run(t, () => Promise.reject(new RangeError('sold out')), [request(1)], policy, filter)
    assert.deepEqual(ends(result), ['parked: exhausted'])
    assert.equal(result.parked[0].message.lastError, 'sold out')
  })
}

test('what a filter gives the requester is not the failure', async (t) => {
  class Unknown extends RpcException {}
  class Shown {
    catch(error) {
      return throwError(() => error.getError())
    }
  }
  const options = { ...policy, rules: ['error=Unknown => fixed(1m, retries=1)'], isFatal: (error) => error.message === 'gone' }
  const handle = (text) => Promise.reject(text === 'own' ? new Unknown({ code: 7 }) : new RpcException(text))
  for (const [filter, refused] of [
    [decorated(Shown, Catch()), 'gone'],
    [BaseRpcExceptionFilter, { status: 'error', message: 'gone' }],
  ]) {
    const result = await run(t, handle, [request('gone'), request('own')], options, UseFilters(new filter()))
    assert.deepEqual(ends(result), ['parked: fatal', 'parked: exhausted'])
    assert.equal(result.attemptsOf(1).length, 2)
    assert.equal(result.parked[0].message.lastError, 'gone')
    assert.equal(result.parked[1].message.headers['x-retry-error-type'], 'Unknown')
    assert.deepEqual(
      result.replies.map(({ err }) => err),
      [refused, { code: 7 }],
    )
  }
})

test('Observables end with their last value', async (t) => {
  const values = { three: of(1, 2, 3), none: EMPTY, fails: throwError(() => new Error('late')) }
  const result = await run(t, (name) => values[name], [request('three'), request('none'), request('fails')])
  assert.deepEqual(ends(result), ['acked', 'acked', 'parked: exhausted'])
  assert.deepEqual(result.replies, [
    { response: 3, isDisposed: true },
    { isDisposed: true },
    { err: { status: 'error', message: 'Internal server error' }, isDisposed: true },
  ])
})

test('an Observable that comes after the time limit is not subscribed', async (t) => {
  let begun = 0
  const returned = []
  const handle = async (_, { signal }) => {
    await new Promise((resolve) => signal.addEventListener('abort', resolve))
    const observable = new Observable((observer) => (begun++, observer.complete()))
    returned.push(observable)
    return observable
  }
  const result = await run(t, handle, ['1', '2'], { dlx: true, retry: 'fixed(1s, retries=0)', handlerTimeout: 10 })
  assert.deepEqual(ends(result), ['parked: exhausted', 'parked: exhausted'])
  await new Promise(setImmediate) // what follows the handler has run
  assert.equal(returned.length, 2)
  assert.equal(begun, 0)
})

for (const where of ['of a handler', 'of an interceptor']) {
  test(`an Observable ${where} that outlasts its attempt is stopped`, async (t) => {
    let stopped = 0
    const hanging = new Observable(() => () => void stopped++)
    const interceptors = where === 'of a handler' ? [] : [UseInterceptors({ intercept: () => hanging })]
    const options = { dlx: true, retry: 'fixed(1s, retries=1)', handlerTimeout: 10 }
    const result = await run(t, () => hanging, [request(1)], options, ...interceptors)
    assert.deepEqual(ends(result), ['parked: exhausted'])
    assert.equal(stopped, 2)
    assert.deepEqual(result.replies, [{ err: { status: 'error', message: 'Internal server error' }, isDisposed: true }])
  })
}

test('a request is answered once, when its result is final', async (t) => {
  const tries = {}
  const handle = (what, { attempt, isRequest }) => {
    assert.ok(isRequest)
    tries[what] = attempt
    if (what === 'flaky' && attempt < 3) throw new Error('busy')
    if (what === 'rpc') throw new RpcException('no such customer')
    if (what === 'object') throw new RpcException({ code: 9 })
    if (what === 'http') throw new BadRequestException('id is missing')
    if (what === 'bad') throw new Error('with secrets')
    if (what === 'function') return () => {}
    return { done: what }
  }
  const all = ['flaky', 'rpc', 'object', 'http', 'bad', 'function']
  const result = await run(t, handle, all.map((what) => request(what)))
  assert.deepEqual(ends(result), ['acked', ...Array(3).fill('parked: fatal'), 'parked: exhausted', 'parked: exhausted'])
  assert.deepEqual(tries, { flaky: 3, rpc: 1, object: 1, http: 1, bad: 3, function: 3 })
  const err = (err) => ({ err, isDisposed: true })
  const internal = err({ status: 'error', message: 'Internal server error' })
  const refused = [{ status: 'error', message: 'no such customer' }, { code: 9 }, { status: 'error', message: 'id is missing' }].map(err)
  // Messages that wait are handled after those that do not.
  const replies = [...refused, { response: { done: 'flaky' }, isDisposed: true }, internal, internal]
  assert.deepEqual(result.replies, replies)
})

test('a result or an error that JSON cannot hold is answered with an error, and not done again', async (t) => {
  const circular = {}
  circular.self = circular
  const values = { big: () => 7n, circular: () => circular, error: () => Promise.reject(new RpcException(circular)) }
  const names = Object.keys(values)
  const result = await run(t, (name) => values[name](), names.map((name) => request(name)))
  assert.deepEqual(ends(result), ['acked', 'acked', 'parked: fatal'])
  assert.equal(result.attempts.length, names.length)
  assert.deepEqual(
    result.replies,
    names.map(() => ({ err: { status: 'error', message: 'Internal server error' }, isDisposed: true })),
  )
})

test('a handler that blocks the event loop for too long gets the one reply of its failure', async (t) => {
  const handle = (what) => {
    const until = performance.now() + 30
    while (performance.now() < until);
    if (what === 'fails') throw new RpcException('refused')
    return 'done'
  }
  const options = { dlx: true, retry: 'fixed(1s, retries=1)', handlerTimeout: 20 }
  const result = await run(t, handle, [request('succeeds'), request('fails')], options)
  assert.deepEqual(ends(result), ['parked: exhausted', 'parked: exhausted'])
  const late = { err: { status: 'error', message: 'Internal server error' }, isDisposed: true }
  assert.deepEqual(result.replies, [late, late])
})

test('an attempt whose time passes while its reply is sent sends no second one', async (t) => {
  let aborted
  const handle = (_, { signal }) => {
    aborted = new Promise((resolve) => signal.addEventListener('abort', resolve))
    return 7
  }
  const { rmq } = await simulated(t, { providers: [consumer(handle, { dlx: true, retry: 'fixed(1s, retries=0)', handlerTimeout: 200 })] })
  const publish = rmq.publish.bind(rmq)
  rmq.publish = async (...args) => {
    await publish(...args)
    await aborted // the broker confirms it too late
  }
  assert.deepEqual(ends(await rmq.simulate('orders', [request(1)])), ['parked: exhausted'])
  assert.equal(rmq.published.length, 1)
})

test('what middleware makes of an attempt decides about the reply', async (t) => {
  let commits = 0
  const transaction = async (message, next) => {
    await next()
    if (message.json().data === 'never' || ++commits === 1) throw new RpcException('no commit')
  }
  const options = { dlx: true, retry: 'fixed(1s, retries=1)', isFatal: () => false, middleware: [transaction] }
  const result = await run(t, () => ({ done: true }), [request(1), request('never')], options)
  assert.deepEqual(ends(result), ['acked', 'parked: exhausted'])
  const replies = [{ response: { done: true } }, { err: { status: 'error', message: 'no commit' } }]
  assert.deepEqual(
    result.replies,
    replies.map((reply) => ({ ...reply, isDisposed: true })),
  )
})

test('whether an error is fatal holds for its attempt only', async (t) => {
  const same = new RpcException('no') // as of a promise that many wait for
  const result = await run(t, () => Promise.reject(same), [request(1), '2', request(3), '4'])
  assert.deepEqual(ends(result), ['parked: fatal', 'parked: exhausted', 'parked: fatal', 'parked: exhausted'])
  assert.ok(result.attempts.every(({ error }) => error === same))
  assert.equal(result.parked[0].message.lastError, 'no')
  assert.equal(result.parked[0].message.headers['x-retry-error-type'], 'RpcException')
})

test('whether a failure is the last is the decision of the policy and the rules', async (t) => {
  const rules = ['error=RangeError => fixed(1s, retries=1)', 'routing_key=eu.# => fixed(1s, retries=2)', 'header.tenant=us => fixed(1s, retries=0)']
  const handle = (what, { attempt }) => Promise.reject(what === 'range' ? new RangeError(`range ${attempt}`) : new RpcException(`${what} ${attempt}`))
  const inputs = [request('other'), request('range'), { ...request('eu'), routingKey: 'eu.1' }, { ...request('us'), headers: { tenant: 'us' } }]
  const result = await run(t, handle, inputs, { dlx: true, retry: 'fixed(1m, retries=3)', rules, isFatal: () => false })
  assert.deepEqual(
    [0, 1, 2, 3].map((index) => result.attemptsOf(index).length),
    [4, 2, 3, 1],
  )
  assert.deepEqual(
    result.replies.map(({ err }) => err.message),
    ['us 1', 'Internal server error', 'eu 3', 'other 4'],
  )
})

test('of a message with a service behind it nobody knows whether it is over', async (t) => {
  const { rmq } = await simulated(t, { providers: [consumer(() => Promise.reject(new Error()), { dlx: true, strategy: 'service' })] })
  await rmq.simulate('orders', [request(1)])
  assert.deepEqual(rmq.published, [])
})

test('methods share a queue by pattern', async (t) => {
  const seen = []
  class Orders {
    created(data) {
      seen.push(`created ${data}`)
    }
    sum(data) {
      seen.push(`sum ${data}`)
    }
  }
  method(Orders, 'created', RetryConsume('orders', { ...policy, pattern: 'created' }), RetryConsume('orders', { pattern: 'made' }))
  method(Orders, 'sum', RetryConsume('orders', { pattern: { cmd: 'sum', v: 1 } }))
  const { rmq } = await simulated(t, { providers: [Orders] })
  const result = await rmq.simulate('orders', [
    '{"pattern":"created","data":1}',
    '{"pattern":{"v":1,"cmd":"sum"},"data":2}',
    { body: '3', routingKey: 'made' },
    request(4, 'other'),
    '5',
  ])
  assert.deepEqual(seen, ['created 1', 'sum 2', 'created 3'])
  assert.deepEqual(ends(result), ['acked', 'acked', 'acked', 'parked: undecodable', 'parked: undecodable'])
  assert.equal(result.parked[0].message.lastError, 'no method handles the pattern "other" of orders')
  assert.deepEqual(JSON.parse(rmq.published[0].body).err, { status: 'error', message: 'no method handles the pattern "other" of orders' })
  assert.deepEqual(rmq.published[0].routingKey, 'replies')
})

test('a body that is not JSON is undecodable, and not quoted', async (t) => {
  const { parked } = await run(t, () => {}, ['secret', Buffer.from([0xff])])
  assert.deepEqual(
    parked.map(({ reason, message }) => [reason, message.lastError.includes('secret'), message.headers['x-retry-error-type']]),
    [
      ['undecodable', false, 'SyntaxError'],
      ['undecodable', false, 'SyntaxError'],
    ],
  )
})

test('a body may be read in another way', async (t) => {
  const seen = []
  const decode = (message) => {
    if (message.body.length === 0) throw new RangeError('empty')
    return message.body.length
  }
  const result = await run(t, (data) => void seen.push(data), ['abc', ''], { ...policy, decode })
  assert.deepEqual(seen, [3])
  assert.deepEqual(ends(result), ['acked', 'parked: undecodable'])
})

for (const kind of ['providers', 'controllers']) {
  test(`${kind} in the scope of a request are made for each attempt`, async (t) => {
    const made = []
    class Tenant {
      constructor(request) {
        this.id = request.context.headers.tenant
        this.pattern = request.pattern
      }
    }
    decorated(Tenant, Injectable({ scope: Scope.REQUEST }))
    Inject(REQUEST)(Tenant, undefined, 0)
    class Orders {
      constructor(tenant) {
        this.tenant = tenant
        made.push(tenant.id)
      }
      handle(data, { attempt }) {
        if (attempt === 1) throw new Error(`${this.tenant.id} is busy`)
        return `${data} for ${this.tenant.id}`
      }
    }
    parameters(Orders, 'constructor', Tenant)
    method(Orders, 'handle', RetryConsume('orders', policy))
    if (kind === 'controllers') decorated(Orders, Controller())
    else decorated(Orders, Injectable())
    const { rmq } = await simulated(t, { [kind]: [Orders], providers: kind === 'providers' ? [Orders, Tenant] : [Tenant] })
    const inputs = ['eu', 'us'].map((tenant) => ({ ...request(7), headers: { tenant } }))
    assert.deepEqual(ends(await rmq.simulate('orders', inputs)), ['acked', 'acked'])
    assert.deepEqual(made, ['eu', 'us', 'eu', 'us'])
    assert.deepEqual(
      rmq.published.map(({ body }) => JSON.parse(body).response),
      ['7 for eu', '7 for us'],
    )
  })
}

test('a guard in the scope of a request guards, too', async (t) => {
  class Guard {
    constructor(request) {
      this.request = request
    }
    canActivate() {
      return this.request.context.headers.tenant === 'eu'
    }
  }
  decorated(Guard, Injectable({ scope: Scope.REQUEST }))
  Inject(REQUEST)(Guard, undefined, 0)
  const Orders = consumer(() => {}, policy, UseGuards(Guard))
  const { rmq } = await simulated(t, { providers: [decorated(Orders, Injectable())] })
  const inputs = ['eu', 'us'].map((tenant) => ({ body: '1', headers: { tenant } }))
  assert.deepEqual(ends(await rmq.simulate('orders', inputs)), ['acked', 'parked: fatal'])
})

for (const kind of ['providers', 'controllers']) {
  test(`a guard of the application in the scope of a request guards ${kind}`, async (t) => {
    class Guard {
      constructor(request) {
        this.request = request
      }
      canActivate() {
        return this.request.context.headers.tenant === 'eu'
      }
    }
    decorated(Guard, Injectable({ scope: Scope.REQUEST }))
    Inject(REQUEST)(Guard, undefined, 0)
    const Orders = consumer(() => {})
    if (kind === 'controllers') decorated(Orders, Controller())
    const guard = { provide: APP_GUARD, useClass: Guard, scope: Scope.REQUEST }
    const { rmq } = await simulated(t, { imports: [module({ [kind]: [Orders] })], providers: [guard] })
    const inputs = ['eu', 'us'].map((tenant) => ({ body: '1', headers: { tenant } }))
    assert.deepEqual(ends(await rmq.simulate('orders', inputs)), ['acked', 'parked: fatal'])
  })
}

test('a transient provider is made for each attempt', async (t) => {
  let made = 0
  const Orders = consumer(() => {})
  const { constructor } = Orders.prototype
  class Counted extends constructor {
    constructor() {
      super()
      made++
    }
  }
  const { rmq } = await simulated(t, { providers: [decorated(Counted, Injectable({ scope: Scope.TRANSIENT }))] })
  assert.deepEqual(ends(await rmq.simulate('orders', ['1', '2'])), ['acked', 'acked'])
  assert.equal(made, 2)
})

test('a publisher writes JSON, and a test sees it', async (t) => {
  const { app, rmq } = await simulated(t, {})
  const publisher = app.get(RetryRmqPublisher)
  await publisher.publish('emails', { to: 'a' }, { messageId: '7' })
  await publisher.publish('emails', 1, { pattern: 'send', contentType: 'text/json' })
  assert.deepEqual(rmq.published, [
    { routingKey: 'emails', body: '{"to":"a"}', contentType: 'application/json', messageId: '7' },
    { routingKey: 'emails', body: '{"pattern":"send","data":1}', contentType: 'text/json' },
  ])
  await assert.rejects(publisher.publish('emails', undefined), { name: 'TypeError', message: '`data` must be a value of JSON, not undefined' })
  await assert.rejects(publisher.publish('emails', 1, { color: 'red' }), /no option `color`/)
  await assert.rejects(rmq.simulate('nothing', []), /no method consumes nothing/)
})

test('the client of an application is replaced in a test', async (t) => {
  const App = module({ imports: [RetryRmqModule.forRoot('amqp://127.0.0.1:1')], providers: [consumer(() => {})] })
  const rmq = new RetryRmqTesting()
  const app = await Test.createTestingModule({ imports: [App] }).overrideProvider(Client).useValue(rmq).setLogger(silent).compile()
  await app.init()
  t.after(() => app.close())
  assert.deepEqual(ends(await rmq.simulate('orders', ['1'])), ['acked'])
})

test('what all consumers of a client share comes after what a method says', async (t) => {
  const Orders = consumer(() => Promise.reject(new Error()), { retry: 'fixed(1s, retries=0)' })
  const { rmq } = await simulated(t, { providers: [Orders] }, { defaults: { dlx: true, retry: 'fixed(1m, retries=9)' } })
  const { parked, attempts } = await rmq.simulate('orders', ['1'])
  assert.deepEqual([parked.length, attempts.length], [1, 1])
})

test('what a factory returns again is one consumer', async (t) => {
  const Orders = consumer(() => {})
  const again = { provide: 'again', useFactory: (orders) => orders, inject: [Orders] }
  const { rmq } = await simulated(t, { providers: [Orders, again, { provide: 'alias', useExisting: Orders }] })
  assert.deepEqual(ends(await rmq.simulate('orders', ['1'])), ['acked'])
})

/** Two methods of one class. */
function two(first, second) {
  class Orders {
    one() {}
    other() {}
  }
  method(Orders, 'one', RetryConsume('orders', first))
  method(Orders, 'other', RetryConsume('orders', second))
  return [Orders]
}

for (const [what, providers, expected] of [
  ['two methods for the same messages', two(policy, policy), /@RetryConsume\('orders'\) of Orders\.other and .*Orders\.one handle the same/],
  ['two options', two({ ...policy, pattern: 'a' }, { pattern: 'b', dlx: false }), /Orders\.other: `dlx` differs/],
  ['an unknown option', [consumer(() => {}, { color: 'red' })], /@RetryConsume\('orders'\) of Orders\.handle: there is no option `color`/],
  ['batches', [consumer(() => {}, { batch: 10 })], /Orders\.handle: .*`batch`/],
  ['an unknown client', [consumer(() => {}, { client: 'eu' })], /there is no client named eu; import RetryRmqModule\.forRoot\({ name: 'eu'/],
]) {
  test(`refused at the start: ${what}`, async (t) => {
    await assert.rejects(simulated(t, { providers }), (error) => {
      assert.match(error.message, expected)
      return true
    })
  })
}

test('a client that is imported twice is refused', async (t) => {
  await assert.rejects(simulated(t, { imports: [RetryRmqModule.forTest()] }), /imported twice; give each client a `name`/)
})
