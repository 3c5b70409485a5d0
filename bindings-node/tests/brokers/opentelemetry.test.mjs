// Traces and metrics, with OpenTelemetry's own SDK and exporters.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'

import { ProxyTracerProvider, SpanKind, SpanStatusCode, context, propagation, trace } from '@opentelemetry/api'
import { AggregationTemporality, InMemoryMetricExporter, MeterProvider, PeriodicExportingMetricReader } from '@opentelemetry/sdk-metrics'
import { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node'
import { connect, defer, fixed, park, retryAfter } from 'retryrmq'
import { OpenTelemetry } from 'retryrmq/opentelemetry'

import { URL_, client, deferred, queue, test, until } from './broker.mjs'

const exporter = new InMemorySpanExporter()
const tracerProvider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] })
tracerProvider.register() // also the context manager and the propagator for W3C headers

/** A client with telemetry, a queue, and the spans and metrics of that queue. */
async function telling(t) {
  const metricExporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE)
  const reader = new PeriodicExportingMetricReader({ exporter: metricExporter, exportIntervalMillis: 3_600_000 })
  const meterProvider = new MeterProvider({ readers: [reader] })
  t.after(() => meterProvider.shutdown())
  const telemetry = new OpenTelemetry({ tracerProvider, meterProvider })
  const rmq = await client(t, { middleware: [telemetry.consume], publishMiddleware: [telemetry.publish] })
  const orders = await queue(t)
  const spans = (kind) =>
    exporter.getFinishedSpans().filter((span) => span.kind === kind && span.name.endsWith(` ${orders}`))
  /** The points of a metric: attributes and values. */
  const points = async (name) => {
    await reader.forceFlush()
    const found = metricExporter.getMetrics().at(-1).scopeMetrics[0].metrics.find(({ descriptor }) => descriptor.name === name)
    return found.dataPoints.map(({ attributes, value }) => [attributes, value.count ?? value, found.descriptor.unit])
  }
  return { telemetry, rmq, orders, points, published: () => spans(SpanKind.PRODUCER), processed: () => spans(SpanKind.CONSUMER) }
}

test('a publish and its two attempts are one trace', async (t) => {
  const { rmq, orders, points, published, processed } = await telling(t)
  const active = []
  const consumer = await rmq.consume({ queue: orders, dlx: true, retry: fixed('50ms') }, async (msg) => {
    await new Promise((resolve) => setImmediate(resolve))
    active.push(trace.getActiveSpan()?.spanContext().spanId)
    if (msg.attempt === 1) throw new RangeError('no answer')
  })
  await rmq.publish(orders, 'body', { messageId: '4711', correlationId: 'request-1' })
  await until('it is handled', () => consumer.stats().acked === 1 && processed().length === 2)

  const [producer] = published()
  assert.equal(published().length, 1)
  assert.equal(producer.name, `publish ${orders}`)
  const { name: scope, version, schemaUrl } = producer.instrumentationScope
  assert.equal(scope, 'retryrmq')
  assert.match(`${version} ${schemaUrl}`, /^\d+\.\d+\.\d+ https:\/\/opentelemetry\.io\/schemas\//)
  const common = {
    'messaging.system': 'rabbitmq',
    'messaging.destination.name': orders,
    'messaging.rabbitmq.destination.routing_key': orders,
    'messaging.message.id': '4711',
    'messaging.message.conversation_id': 'request-1',
    'messaging.message.body.size': 4,
  }
  const sends = { 'messaging.operation.name': 'publish', 'messaging.operation.type': 'send' }
  assert.deepEqual(producer.attributes, { ...common, ...sends })
  assert.equal(producer.status.code, SpanStatusCode.UNSET)

  const [first, second] = processed()
  for (const span of [first, second]) {
    assert.equal(span.name, `process ${orders}`)
    assert.equal(span.spanContext().traceId, producer.spanContext().traceId)
    assert.equal(span.parentSpanContext.spanId, producer.spanContext().spanId)
  }
  assert.deepEqual(active, [first.spanContext().spanId, second.spanContext().spanId])
  const handles = { ...common, 'messaging.operation.name': 'process', 'messaging.operation.type': 'process' }
  const failed = { 'retryrmq.attempt': 1, 'retryrmq.outcome': 'retry', 'error.type': 'RangeError' }
  assert.deepEqual(first.attributes, { ...handles, ...failed })
  assert.deepEqual(first.status, { code: SpanStatusCode.ERROR, message: 'no answer' })
  const [{ name, attributes: recorded }] = first.events
  assert.equal(name, 'exception')
  assert.equal(recorded['exception.type'], 'RangeError')
  assert.equal(recorded['exception.message'], 'no answer')
  assert.match(recorded['exception.stacktrace'], /^RangeError: no answer\n {4}at /)
  assert.deepEqual(second.attributes, { ...handles, 'retryrmq.attempt': 2, 'retryrmq.outcome': 'ack' })
  assert.equal(second.status.code, SpanStatusCode.UNSET)
  assert.deepEqual(second.events, [])

  const process = { 'messaging.system': 'rabbitmq', 'messaging.operation.name': 'process', 'messaging.destination.name': orders }
  const publish = { ...process, 'messaging.operation.name': 'publish' }
  assert.deepEqual(await points('messaging.process.duration'), [
    [{ ...process, 'error.type': 'RangeError' }, 1, 's'],
    [process, 1, 's'],
  ])
  assert.deepEqual(await points('messaging.client.consumed.messages'), [[process, 2, '{message}']])
  assert.deepEqual(await points('messaging.client.sent.messages'), [[publish, 1, '{message}']])
  const duration = [{ ...publish, 'messaging.operation.type': 'send' }, 1, 's']
  assert.deepEqual(await points('messaging.client.operation.duration'), [duration])
})

test('an attempt has the outcome that it ended with, and a deferral is no error', async (t) => {
  const { rmq, orders, processed } = await telling(t)
  const { promise: never } = deferred()
  const ends = [
    () => defer('50ms'),
    () => retryAfter('50ms', 'busy'),
    () => retryAfter('50ms', new RangeError('busy')),
    () => undefined,
    () => 'a text',
    () => park('ask the customer'),
  ]
  const options = { queue: orders, dlx: true, retry: fixed('50ms', { retries: 20 }), handlerTimeout: '2s' }
  const consumer = await rmq.consume(options, () => {
    const end = ends.shift()
    if (ends.length === 2 && end !== undefined) return never // longer than its time
    throw end()
  })
  await rmq.publish(orders, 'x')
  await until('it is parked', () => consumer.stats().parked === 1 && processed().length === 6)
  assert.deepEqual(
    processed().map(({ attributes, status }) => [attributes['retryrmq.outcome'], attributes['error.type'], status.code]),
    [
      ['defer', undefined, SpanStatusCode.UNSET],
      ['retry', 'RetryAfter', SpanStatusCode.ERROR],
      ['retry', 'RangeError', SpanStatusCode.ERROR],
      ['retry', 'HandlerTimeout', SpanStatusCode.ERROR],
      ['retry', '_OTHER', SpanStatusCode.ERROR],
      ['park', 'Park', SpanStatusCode.ERROR],
    ],
  )
  assert.equal(processed().at(-1).status.message, 'ask the customer')
})

test('headers that are no trace break nothing, and the span of the consumer is no parent', async (t) => {
  const { rmq, orders, processed } = await telling(t)
  const plain = await client(t)
  const traceparents = ['', 'nonsense', '00-0-0-00', 7, null, Buffer.from([0xff]), ['x'], { a: 1 }, 'x'.repeat(10_000)]
  const around = tracerProvider.getTracer('test').startSpan('start')
  const baggage = propagation.createBaggage({ who: { value: 'start' } })
  const handled = []
  await context.with(propagation.setBaggage(trace.setSpan(context.active(), around), baggage), () =>
    rmq.consume({ queue: orders }, () => void handled.push(propagation.getActiveBaggage())),
  )
  for (const traceparent of traceparents) {
    await plain.publish(orders, 'x', { headers: { traceparent, tracestate: 7, baggage: '%%%=,;' } })
  }
  await until('all are handled', () => processed().length === traceparents.length)
  for (const span of processed()) {
    assert.equal(span.parentSpanContext, undefined)
    assert.equal(span.attributes['retryrmq.outcome'], 'ack')
  }
  for (const baggage of handled) assert.equal(baggage?.getEntry('who'), undefined)
})

test('a trace goes on in what a handler publishes', async (t) => {
  const { rmq, orders, published, processed } = await telling(t)
  const { promise: arrived, resolve } = deferred()
  const shop = tracerProvider.getTracer('test').startSpan('shop')
  await rmq.consume({ queue: orders }, async (msg) => {
    if (msg.text() === 'second') return resolve(msg)
    await rmq.publish(orders, 'second', { headers: { own: 1 } })
  })
  await context.with(trace.setSpan(context.active(), shop), () => rmq.publish(orders, 'first'))
  const msg = await arrived
  await until('all spans have ended', () => processed().length === 2)
  const parents = new Map([...published(), ...processed()].map((span) => [span.spanContext().spanId, span.parentSpanContext?.spanId]))
  assert.equal(msg.headers.own, 1)
  let [, , id] = msg.headers.traceparent.split('-')
  const line = []
  for (; id !== undefined; id = parents.get(id)) line.push(id)
  assert.equal(line.length, 4) // the second publish, the first attempt, the first publish, the shop
  assert.equal(line.at(-1), shop.spanContext().spanId)
})

test('a publish that fails has the code of its error', async (t) => {
  const { rmq, orders, points } = await telling(t)
  const nowhere = `${orders}-nowhere`
  await assert.rejects(rmq.publish('order.7', 'x', { exchange: nowhere }), { code: 'unroutable' })
  const [span] = exporter.getFinishedSpans().filter(({ name }) => name === `publish ${nowhere}`)
  assert.equal(span.attributes['messaging.destination.name'], `${nowhere}:order.7`)
  assert.equal(span.attributes['error.type'], 'unroutable')
  assert.equal(span.status.code, SpanStatusCode.ERROR)
  const [[attributes]] = await points('messaging.client.sent.messages')
  assert.equal(attributes['error.type'], 'unroutable')
  assert.equal(attributes['messaging.destination.name'], nowhere) // without routing keys, of which there may be any number
})

test('an attempt that its consumer abandons has no outcome of its handler', async (t) => {
  const { rmq, orders, processed } = await telling(t)
  const { promise: begun, resolve } = deferred()
  const consumer = await rmq.consume({ queue: orders }, () => new Promise(() => resolve()))
  await rmq.publish(orders, 'x')
  await begun
  consumer.stop()
  await until('its span has ended', () => processed().length === 1)
  assert.equal(processed()[0].attributes['retryrmq.outcome'], 'requeue')
  assert.equal(processed()[0].status.code, SpanStatusCode.UNSET)
})

test('a batch is one span with a link to each publish', async (t) => {
  const { telemetry, rmq, orders, points, published, processed } = await telling(t)
  const plain = await client(t)
  const answers = [[undefined, new RangeError('no answer'), defer('10s')], undefined]
  const options = { queue: orders, dlx: true, retry: fixed('1m'), batch: 3, batchWait: '1m', concurrency: 1 }
  const handle = () => answers.shift()
  const consumer = await rmq.consume(options, telemetry.batch(handle))
  for (const messageId of ['0', '1']) await rmq.publish(orders, 'x', { messageId })
  await plain.publish(orders, 'x', { headers: { traceparent: 'nonsense' } })
  await until('the first is handled', () => processed().length === 1)
  for (const messageId of ['3', '4', '5']) await rmq.publish(orders, 'x', { messageId })
  await until('the second is handled', () => processed().length === 2)
  await consumer.close()

  const [first, second] = processed()
  const spans = published().map((span) => span.spanContext().spanId)
  assert.deepEqual(
    [...first.links, ...second.links].map(({ context, attributes }) => [context.spanId, attributes['messaging.message.id']]),
    ['0', '1', '3', '4', '5'].map((id, index) => [spans[index], id]),
  )
  assert.equal(first.parentSpanContext, undefined)
  const common = {
    'messaging.system': 'rabbitmq',
    'messaging.operation.name': 'process',
    'messaging.operation.type': 'process',
    'messaging.destination.name': orders,
    'messaging.batch.message_count': 3,
  }
  assert.deepEqual(first.attributes, { ...common, 'retryrmq.failed_messages': 1, 'error.type': 'RangeError' })
  assert.deepEqual(first.status, { code: SpanStatusCode.ERROR, message: '1 of 3 messages failed, the first: no answer' })
  assert.deepEqual(second.attributes, { ...common, 'retryrmq.failed_messages': 0, 'retryrmq.outcome': 'ack' })
  const [[, consumed]] = await points('messaging.client.consumed.messages')
  assert.equal(consumed, 6)
  assert.throws(() => telemetry.batch({}), /the handler must be a function, not an object/)
})

test('queues that the broker names are no series of their own', async (t) => {
  const { rmq, points } = await telling(t)
  const replies = [1, 2].map((number) => `amq.gen-${number}-${randomUUID()}`)
  // They are gone, as queues for replies mostly are when nobody waits any more.
  for (const reply of replies) await assert.rejects(rmq.publish(reply, 'x'), { code: 'unroutable' })
  const spans = exporter.getFinishedSpans().filter(({ attributes }) => replies.includes(attributes['messaging.destination.name']))
  assert.deepEqual(spans.map(({ name }) => name), ['publish (anonymous)', 'publish (anonymous)'])
  for (const metric of ['messaging.client.sent.messages', 'messaging.client.operation.duration']) {
    const found = (await points(metric)).map(([attributes, count]) => [attributes['messaging.destination.name'], count])
    assert.deepEqual(found, [['(anonymous)', 2]])
  }
})

test('options that do not exist are refused, and without an SDK everything works', async (t) => {
  assert.throws(() => new OpenTelemetry({ tracer: 1 }), /there is no option `tracer`/)
  const telemetry = new OpenTelemetry({ tracerProvider: new ProxyTracerProvider() })
  const rmq = await connect(URL_, { middleware: [telemetry.consume], publishMiddleware: [telemetry.publish] })
  t.after(() => rmq.close())
  const orders = await queue(t)
  const { promise, resolve } = deferred()
  await rmq.consume({ queue: orders }, resolve)
  await rmq.publish(orders, 'x')
  await promise
})
