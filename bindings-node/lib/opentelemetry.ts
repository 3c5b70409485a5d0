/// <reference types="node" preserve="true" />

/**
 * Traces and metrics by OpenTelemetry: a span for every attempt and every publish, in one trace from the publisher on.
 *
 *     const telemetry = new OpenTelemetry()
 *     const rmq = await connect(url, { middleware: [telemetry.consume], publishMiddleware: [telemetry.publish] })
 *
 * Needs `@opentelemetry/api`. Names and attributes are those of OpenTelemetry's semantic conventions for messaging.
 *
 * @packageDocumentation
 */

import {
  type Attributes,
  type Context as Trace,
  type Counter,
  type Histogram,
  type Link,
  type MeterProvider,
  type Span,
  SpanKind,
  type SpanOptions,
  SpanStatusCode,
  type Tracer,
  type TracerProvider,
  context,
  metrics,
  propagation,
  trace,
} from '@opentelemetry/api'

import { batchResults, withOwnArray } from './batch_results.js'
import { InvalidTypeError, RetryRmqError, kind } from './errors.js'
import { type Message, sizeOf } from './message.js'
import type { Middleware, Next, Publish, PublishMiddleware, PublishNext } from './middleware.js'
import { native } from './native.js'
import { type BatchHandler, onlyKnown } from './options.js'
import { classify, isSignal } from './outcome.js'
import { now } from './timers.js'
import type { Headers } from './values.js'

/** Where spans and metrics go; what was registered with the API by default. */
export interface OpenTelemetryOptions {
  /** The provider of spans; by default the global one, also if it is registered later. */
  tracerProvider?: TracerProvider | undefined
  /** The provider of metrics; by default the one that is global at the first message. */
  meterProvider?: MeterProvider | undefined
}

/** The version of the conventions in which these names are. */
const SCHEMA = { schemaUrl: 'https://opentelemetry.io/schemas/1.39.0' }
const SYSTEM = 'messaging.system'
const OPERATION = 'messaging.operation.name'
const OPERATION_TYPE = 'messaging.operation.type'
const DESTINATION = 'messaging.destination.name'
const ROUTING_KEY = 'messaging.rabbitmq.destination.routing_key'
const MESSAGE_ID = 'messaging.message.id'
const CONVERSATION_ID = 'messaging.message.conversation_id'
const BODY_SIZE = 'messaging.message.body.size'
const ERROR_TYPE = 'error.type'
const ATTEMPT = 'retryrmq.attempt'
const OUTCOME = 'retryrmq.outcome'
const FAILED = 'retryrmq.failed_messages'

/** In seconds, as the conventions have it. */
const BUCKETS = { explicitBucketBoundaries: [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10] }

interface Instruments {
  processed: Histogram
  consumed: Counter
  sent: Counter
  operated: Histogram
}

/** How something failed. */
interface Failure {
  type: string
  text: string
  stack: string | undefined
}

/** How an attempt, or a batch of them, ended. */
interface Ending {
  outcome?: string | undefined
  /** How many messages of a batch failed. */
  failed?: number
  failure?: Failure | undefined
}

/**
 * Makes spans and metrics. Give {@link OpenTelemetry.consume} to `middleware` and {@link OpenTelemetry.publish} to `publishMiddleware`, each
 * as the first, so that it sees what other middleware does.
 */
export class OpenTelemetry {
  readonly #options: OpenTelemetryOptions
  #tracer: Tracer | undefined
  #instruments: Instruments | undefined

  constructor(options: OpenTelemetryOptions = {}) {
    if (typeof options !== 'object' || options === null) {
      throw new InvalidTypeError(`the options of OpenTelemetry must be an object, not ${kind(options)}`)
    }
    onlyKnown(options, ['tracerProvider', 'meterProvider'])
    this.#options = options
  }

  /**
   * A span `process QUEUE` of kind CONSUMER around each attempt, as a child of the context in the message's headers. Copies keep those
   * headers, so all attempts are children of the publisher's span. Its attribute `retryrmq.outcome` is `ack`, `retry`, `park`, `undecodable`
   * or `defer`, as the attempt ended, or `requeue` if the consumer ended first. All but `ack`, `defer` and `requeue` have the status ERROR,
   * the exception and `error.type`; a handler that ran longer than its `handlerTimeout` has the error type `HandlerTimeout`.
   *
   * Metrics: `messaging.process.duration` (seconds) and `messaging.client.consumed.messages`.
   */
  readonly consume: Middleware = (message, next, { signal }) => this.#consume(message, next, signal)

  /**
   * A span `publish EXCHANGE` of kind PRODUCER around each publish, until the broker has confirmed it; for the default exchange it has the
   * name of the queue, or `(anonymous)` for one that the broker named, such as a queue for replies. Its context is written into the headers
   * by the global propagator (`traceparent`, `tracestate`). If the publish fails, `error.type` is the `code` of the error.
   *
   * Metrics: `messaging.client.operation.duration` (seconds) and `messaging.client.sent.messages`.
   */
  readonly publish: PublishMiddleware = (publish, next) => this.#publish(publish, next)

  /**
   * Wraps a handler of batches, to which middleware does not apply: `rmq.consume({ queue, batch: 100 }, telemetry.batch(handler))`.
   *
   * Each call has one span `process QUEUE` of kind CONSUMER, with a link to the context of each message that has one, and the attributes
   * `messaging.batch.message_count` and `retryrmq.failed_messages`. It has the status ERROR if a message failed, and `retryrmq.outcome` if all
   * messages ended alike. The metrics are those of {@link OpenTelemetry.consume}.
   */
  batch<Body = unknown>(handler: BatchHandler<Body>): BatchHandler<Body> {
    if (typeof handler !== 'function') throw new InvalidTypeError(`the handler must be a function, not ${kind(handler)}`)
    const call = withOwnArray(handler as BatchHandler) as BatchHandler<Body>
    return (messages, ctx) => {
      const [first] = messages as unknown as [Message, ...Message[]]
      const links: Link[] = []
      for (const message of messages as readonly Message[]) {
        const context = trace.getSpanContext(parentOf(message))
        if (context !== undefined) links.push({ context, attributes: some({ [MESSAGE_ID]: message.messageId }) })
      }
      const attributes = { [DESTINATION]: first.queue, 'messaging.batch.message_count': messages.length }
      const endingOf = (value: unknown): Ending => batchEnding(value, messages.length)
      return this.#process(first.queue, messages.length, { attributes, links }, outside(), () => call(messages, ctx), endingOf, ctx.signal)
    }
  }

  #consume(message: Message, next: Next, signal: AbortSignal): Promise<unknown> {
    const { queue, exchange, routingKey, messageId, attempt } = message
    const attributes = {
      [DESTINATION]: destination(exchange, routingKey, queue),
      ...some({ [ROUTING_KEY]: routingKey, [MESSAGE_ID]: messageId, [CONVERSATION_ID]: message.properties.correlationId }),
      [BODY_SIZE]: sizeOf(message),
      [ATTEMPT]: attempt,
    }
    return this.#process(queue, 1, { attributes }, parentOf(message), () => next(), () => ({ outcome: 'ack' }), signal)
  }

  /** Calls the rest of the middleware, or a handler, within a span. `endingOf` says how it ended with what it returned. */
  async #process(
    queue: string,
    count: number,
    { attributes, links }: Pick<SpanOptions, 'attributes' | 'links'>,
    parent: Trace,
    call: () => unknown,
    endingOf: (value: unknown) => Ending,
    signal: AbortSignal,
  ): Promise<unknown> {
    const operation = { [SYSTEM]: 'rabbitmq', [OPERATION]: 'process' }
    const options = { kind: SpanKind.CONSUMER, attributes: { ...operation, [OPERATION_TYPE]: 'process', ...attributes } }
    const span = this.#spans().startSpan(`process ${queue}`, links === undefined ? options : { ...options, links }, parent)
    const { consumed, processed } = this.#numbers()
    const measured: Attributes = { ...operation, [DESTINATION]: queue }
    consumed.add(count, measured)
    const began = now()
    let over = false
    const end = ({ outcome, failed, failure }: Ending): void => {
      if (over) return
      over = true
      signal.removeEventListener('abort', abandoned)
      span.setAttributes(some({ [OUTCOME]: outcome, [FAILED]: failed }))
      if (failure !== undefined) fail(span, failure)
      processed.record((now() - began) / 1000, failure === undefined ? measured : { ...measured, [ERROR_TYPE]: failure.type })
      span.end()
    }
    // The attempt ends although its handler has not.
    const abandoned = (): void => {
      const { name, message } = signal.reason as Error
      if (name === 'TimeoutError') end({ outcome: 'retry', failure: { type: 'HandlerTimeout', text: message, stack: undefined } })
      else end({ outcome: 'requeue' })
    }
    signal.addEventListener('abort', abandoned)
    try {
      const value: unknown = await context.with(trace.setSpan(parent, span), call)
      end(endingOf(value))
      return value
    } catch (error) {
      end(read(error))
      throw error
    }
  }

  // As far as `next` it runs at once: messages are sent in the order of the calls.
  async #publish(publish: Publish, next: PublishNext): Promise<void> {
    const { exchange, routingKey, body, messageId, correlationId } = publish
    const operation = { [SYSTEM]: 'rabbitmq', [OPERATION]: 'publish' }
    const attributes = {
      ...operation,
      [OPERATION_TYPE]: 'send',
      [DESTINATION]: destination(exchange, routingKey),
      ...some({ [ROUTING_KEY]: routingKey, [MESSAGE_ID]: messageId, [CONVERSATION_ID]: correlationId }),
      [BODY_SIZE]: typeof body === 'string' ? Buffer.byteLength(body) : body?.byteLength,
    }
    const name = destinationOf(exchange, routingKey)
    const span = this.#spans().startSpan(`publish ${name}`, { kind: SpanKind.PRODUCER, attributes })
    const active = trace.setSpan(context.active(), span)
    propagation.inject(active, publish.headers)
    const measured: Attributes = { ...operation, [DESTINATION]: name }
    const began = now()
    try {
      await context.with(active, next)
    } catch (error) {
      const { failure = { type: '_OTHER', text: '', stack: undefined } } = read(error)
      // Ours has a code that is the same in every language.
      if (error instanceof RetryRmqError) failure.type = error.code
      fail(span, failure)
      measured[ERROR_TYPE] = failure.type
      throw error
    } finally {
      const { sent, operated } = this.#numbers()
      sent.add(1, measured)
      operated.record((now() - began) / 1000, { ...measured, [OPERATION_TYPE]: 'send' })
      span.end()
    }
  }

  #spans(): Tracer {
    this.#tracer ??= (this.#options.tracerProvider ?? trace).getTracer('retryrmq', native.VERSION, SCHEMA)
    return this.#tracer
  }

  /** Made at the first message: an SDK that is registered after them would not get them. */
  #numbers(): Instruments {
    if (this.#instruments === undefined) {
      const meter = (this.#options.meterProvider ?? metrics).getMeter('retryrmq', native.VERSION, SCHEMA)
      const duration = (name: string, description: string): Histogram =>
        meter.createHistogram(name, { description, unit: 's', advice: BUCKETS })
      const counter = (name: string, description: string): Counter =>
        meter.createCounter(name, { description, unit: '{message}' })
      this.#instruments = {
        processed: duration('messaging.process.duration', 'Duration of processing operation.'),
        consumed: counter('messaging.client.consumed.messages', 'Number of messages that were delivered to the application.'),
        sent: counter('messaging.client.sent.messages', 'Number of messages producer attempted to send to the broker.'),
        operated: duration(
          'messaging.client.operation.duration',
          'Duration of messaging operation initiated by a producer or consumer client.',
        ),
      }
    }
    return this.#instruments
  }
}

/**
 * Where a message is published to, as a name of which there are few. Routing keys of an exchange may be of any number, and so are the queues
 * that the broker names, such as those for replies: they are only in the attributes of spans.
 */
function destinationOf(exchange: string, routingKey: string): string {
  if (exchange !== '') return exchange
  if (routingKey === '') return 'amq.default'
  return routingKey.startsWith('amq.') ? '(anonymous)' : routingKey
}

/** A destination as the conventions for RabbitMQ name it. */
function destination(exchange: string, routingKey: string, queue = ''): string {
  const parts = [exchange, routingKey, queue === routingKey ? '' : queue].filter((part) => part !== '')
  return parts.length === 0 ? 'amq.default' : parts.join(':')
}

/** The attributes that have a value. */
function some(attributes: Attributes): Attributes {
  return Object.fromEntries(Object.entries(attributes).filter(([, value]) => value !== undefined && value !== ''))
}

const HEADERS = {
  get: (headers: Headers, name: string): string | undefined => {
    const value = headers[name]
    return typeof value === 'string' ? value : undefined
  },
  keys: (headers: Headers): string[] => Object.keys(headers),
}

/** The context of a handler without its span and its baggage, which belong to the call of `consume` and not to a message. */
function outside(): Trace {
  return propagation.deleteBaggage(trace.deleteSpan(context.active()))
}

/** The trace of the message's publisher. Anybody may have written the headers, so what a propagator cannot read there is no trace. */
function parentOf(message: Message): Trace {
  try {
    return propagation.extract(outside(), message.headers, HEADERS)
  } catch {
    return outside()
  }
}

/** How an attempt ends that threw. A deferral is no failure. */
function read(error: unknown): { outcome: string; failure?: Failure } {
  const { what, error: text, type, stack } = classify(error, [], { kinds: false, stack: true })
  if (what === 'defer') return { outcome: what }
  // A signal without a cause has no type in a record, but the conventions want one.
  return { outcome: what, failure: { type: type || (isSignal(error) ? error.name : '_OTHER'), text, stack } }
}

function batchEnding(value: unknown, count: number): Ending {
  const answer = batchResults(value, count)
  if (answer === undefined) return { outcome: 'ack', failed: 0 }
  if ('all' in answer) return { ...read(answer.all.error), failed: count }
  const endings = answer.each.map((failure): Ending => (failure === undefined ? { outcome: 'ack' } : read(failure.error)))
  const outcomes = new Set(endings.map(({ outcome }) => outcome))
  const failures = endings.flatMap(({ failure }) => failure ?? [])
  const [first] = failures
  return {
    outcome: outcomes.size === 1 ? [...outcomes][0] : undefined,
    failed: failures.length,
    failure: first && { ...first, text: `${failures.length} of ${count} messages failed, the first: ${first.text}` },
  }
}

function fail(span: Span, { type, text, stack }: Failure): void {
  span.recordException({ name: type, message: text, ...(stack === undefined ? {} : { stack }) })
  span.setStatus({ code: SpanStatusCode.ERROR, message: text })
  span.setAttribute(ERROR_TYPE, type)
}
