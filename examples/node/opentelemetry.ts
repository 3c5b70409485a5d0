// A publish and its attempts in one trace. A service has an exporter for OTLP; this one prints what it would send.

import { InMemorySpanExporter, NodeTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-node'
import { setLogger } from 'retryrmq'
// ANCHOR: connect
import { connect } from 'retryrmq'
import { OpenTelemetry } from 'retryrmq/opentelemetry'

// ANCHOR_END: connect
const exporter = new InMemorySpanExporter()
new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }).register()

setLogger(false)
// ANCHOR: connect
const telemetry = new OpenTelemetry()
const rmq = await connect(undefined, {
  middleware: [telemetry.consume],
  publishMiddleware: [telemetry.publish],
})
// ANCHOR_END: connect
const queue = 'example.traced'
let done = () => {}
const handled = new Promise<void>((resolve) => (done = resolve))
await rmq.consume({ queue, dlx: true, retry: 'fixed(250ms)' }, async (msg) => {
  if (msg.attempt === 1) throw new Error('the warehouse is closed')
  done()
})
await rmq.publish(queue, 'order-7')
await handled
await rmq.close()

const spans = exporter.getFinishedSpans()
const traces = new Set(spans.map((span) => span.spanContext().traceId))
console.log(`${spans.length} spans in ${traces.size} trace`)
for (const { name, attributes, status } of spans) {
  console.log(`${name} ${attributes['retryrmq.outcome'] ?? ''} ${status.message ?? ''}`.trim())
}
