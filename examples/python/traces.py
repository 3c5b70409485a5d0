"""A publish and its attempts as one trace, with OpenTelemetry."""

import retryrmq
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from retryrmq.opentelemetry import OpenTelemetry

QUEUE = "example.traces"
exporter = InMemorySpanExporter()  # a program has one of OTLP, or starts under `opentelemetry-instrument`
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)


def handle(msg: retryrmq.Message) -> None:
    if msg.attempt == 1:
        raise ConnectionError("no answer")
    consumer.close()


# ANCHOR: middleware
telemetry = OpenTelemetry()

with retryrmq.connect_blocking(middleware=[telemetry.consume], publish_middleware=[telemetry.publish]) as client:
    # ANCHOR_END: middleware
    consumer = client.consume(QUEUE, handle, dlx=True, retry="fixed(100ms, retries=5)")
    consumer.start()
    client.publish(QUEUE, "7")
    consumer.run()

spans = exporter.get_finished_spans()
for span in spans:
    attributes = span.attributes or {}
    print(f"{span.kind.name} {span.name}: {attributes.get('error.type', 'no error')}")
print(f"traces: {len({span.context.trace_id for span in spans if span.context})}")
