"""Traces and metrics, with the real SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import retryrmq
from conftest import Broker, eventually, soon
from opentelemetry import baggage, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from retryrmq.opentelemetry import OpenTelemetry
from retryrmq.testing import simulate_blocking


class Telemetry:
    """An SDK that keeps all in memory."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = tracers.get_tracer("test")
        self.middleware = OpenTelemetry(tracer_provider=tracers, meter_provider=MeterProvider([self._reader]))

    @property
    def options(self) -> dict[str, Any]:
        return {"middleware": [self.middleware.consume], "publish_middleware": [self.middleware.publish]}

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.name == name]

    def points(self, metric: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        if data is None:
            return []
        found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics if m.name == metric]
        return [point for it in found for point in it.data.data_points]


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    yield Telemetry()


def test_each_attempt_is_a_child_of_the_publish(broker: Broker, telemetry: Telemetry) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url, **telemetry.options)
    inner: list[Any] = []

    @app.consume(queue, dlx=True, retry="fixed(20ms, retries=3)")
    async def handle(msg: retryrmq.Message) -> None:
        inner.append((trace.get_current_span().get_span_context().span_id, baggage.get_baggage("tenant")))
        if msg.attempt == 1:
            raise ConnectionError("no answer")

    async def main() -> None:
        async with app:
            with telemetry.tracer.start_as_current_span("request"):
                await app.publish(
                    queue, "12345", message_id="m-1", correlation_id="c-1", headers={"baggage": "tenant=acme"}
                )
            await soon("both attempts have ended", lambda: len(telemetry.spans(f"process {queue}")) == 2)

    asyncio.run(main())
    (request,) = telemetry.spans("request")
    (published,) = telemetry.spans(f"publish {queue}")
    failed, succeeded = telemetry.spans(f"process {queue}")
    assert published.kind is SpanKind.PRODUCER and published.parent == request.context
    for span in (failed, succeeded):
        assert span.kind is SpanKind.CONSUMER
        assert span.parent is not None and published.context is not None
        assert span.parent.span_id == published.context.span_id and span.parent.is_remote
        assert span.context is not None and span.context.trace_id == published.context.trace_id
    assert inner == [(span.context.span_id, "acme") for span in (failed, succeeded) if span.context]
    common = {
        "messaging.system": "rabbitmq",
        "messaging.destination.name": queue,
        "messaging.rabbitmq.destination.routing_key": queue,
        "messaging.message.id": "m-1",
        "messaging.message.conversation_id": "c-1",
        "messaging.message.body.size": 5,
    }
    assert published.attributes == {
        **common,
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
    }
    process = {**common, "messaging.operation.name": "process", "messaging.operation.type": "process"}
    assert failed.attributes == {
        **process,
        "retryrmq.attempt": 1,
        "retryrmq.outcome": "retry",
        "error.type": "ConnectionError",
    }
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "ConnectionError: no answer")
    (event,) = failed.events
    assert event.name == "exception" and event.attributes is not None
    assert event.attributes["exception.type"] == "ConnectionError"
    assert succeeded.attributes == {**process, "retryrmq.attempt": 2, "retryrmq.outcome": "ack"}
    assert succeeded.status.status_code is StatusCode.UNSET and not succeeded.events


def test_a_batch_is_one_span_with_links(broker: Broker, telemetry: Telemetry) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url, **telemetry.options)

    @app.consume(queue, dlx=True, batch=3, batch_wait="60s")
    async def handle(messages: list[retryrmq.Message]) -> list[Exception | None]:
        return [None, retryrmq.Park("no"), None]

    async def main() -> None:
        async with app:
            for body in ("0", "1"):
                await app.publish(queue, body)
            async with retryrmq.connect(broker.url) as untraced:
                await untraced.publish(queue, "2")
            await soon("its span has ended", lambda: telemetry.spans(f"process {queue}"))

    asyncio.run(main())
    (span,) = telemetry.spans(f"process {queue}")
    assert span.parent is None and span.attributes is not None
    published = [it.context.span_id for it in telemetry.spans(f"publish {queue}") if it.context]
    assert [link.context.span_id for link in span.links] == published and len(published) == 2
    assert span.attributes["messaging.batch.message_count"] == 3
    assert span.attributes["retryrmq.failed_messages"] == 1 and "retryrmq.outcome" not in span.attributes
    assert span.status.description == "1 of 3 messages failed, the first: Park: no"
    assert telemetry.points("messaging.client.consumed.messages")[0].value == 3


def test_metrics(broker: Broker, telemetry: Telemetry) -> None:
    queue = broker.queue()

    def handle(msg: retryrmq.Message) -> None:
        if msg.attempt == 1:
            raise ConnectionError("no answer")

    with retryrmq.connect_blocking(broker.url, **telemetry.options) as client:
        with client.consume(queue, handle, dlx=True, retry="fixed(20ms, retries=3)") as consumer:
            client.publish(queue, "7")
            eventually("it is handled", lambda: consumer.stats().acked == 1)
        with pytest.raises(retryrmq.UnroutableError):
            client.publish(f"{queue}.missing", "7")
    on_queue = {"messaging.system": "rabbitmq", "messaging.destination.name": queue}
    process = {**on_queue, "messaging.operation.name": "process"}
    failed = {**process, "error.type": "ConnectionError"}
    points = {frozenset(it.attributes.items()): it.count for it in telemetry.points("messaging.process.duration")}
    assert points == {frozenset(process.items()): 1, frozenset(failed.items()): 1}
    (consumed,) = telemetry.points("messaging.client.consumed.messages")
    assert (consumed.attributes, consumed.value) == (process, 2), "each attempt, whatever becomes of it"
    sent = {**on_queue, "messaging.operation.name": "publish", "messaging.operation.type": "send"}
    missing = {
        **sent,
        "messaging.destination.name": f"{queue}.missing",
        "error.type": "unroutable",
    }
    for metric, count in (
        ("messaging.client.operation.duration", "count"),
        ("messaging.client.sent.messages", "value"),
    ):
        points = {frozenset(point.attributes.items()): getattr(point, count) for point in telemetry.points(metric)}
        assert points == {frozenset(sent.items()): 1, frozenset(missing.items()): 1}
    (point, _) = telemetry.points("messaging.process.duration")
    assert point.explicit_bounds[0] == 0.005, "seconds"


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "nonsense"},
        {"traceparent": 7},
        {"traceparent": b"\xff\xfe"},
        {"traceparent": ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]},
        {"traceparent": "00-00000000000000000000000000000000-0000000000000000-01", "tracestate": "=,=;" * 200},
        {"baggage": "=" * 9000},
        {},
    ],
)
def test_whatever_strangers_write_an_attempt_runs_and_is_a_root(headers: dict[str, Any], telemetry: Telemetry) -> None:
    app = retryrmq.App(middleware=[telemetry.middleware.consume])

    @app.consume("orders")
    def handle(msg: retryrmq.Message) -> None: ...

    with telemetry.tracer.start_as_current_span("whatever runs the consumer"):
        assert simulate_blocking(app, "orders", [{"body": "7", "headers": headers}]).acked
    (span,) = telemetry.spans("process orders")
    assert span.parent is None


class Evil(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "outcome", "error_type"),
    [
        (retryrmq.Defer("1s"), "defer", None),
        (retryrmq.Park("no"), "park", "Park"),
        (retryrmq.RetryAfter("1s"), "retry", "RetryAfter"),
        (retryrmq.Undecodable("no"), "undecodable", "Undecodable"),
        (caused(retryrmq.Park("no"), OSError("disk")), "park", "OSError"),
        (caused(LookupError("no"), retryrmq.Park("no")), "park", "LookupError"),
        (Evil(), "retry", "Evil"),
    ],
)
def test_what_a_handler_raises(error: Exception, outcome: str, error_type: str | None, telemetry: Telemetry) -> None:
    app = retryrmq.App(middleware=[telemetry.middleware.consume])

    @app.consume("orders", dlx=True, retry="fixed(1s, retries=0)", defer_limit=1)
    async def handle(msg: retryrmq.Message) -> None:
        raise error

    simulate_blocking(app, "orders", ["7"])
    span = telemetry.spans("process orders")[0]
    assert span.attributes is not None
    assert (span.attributes["retryrmq.outcome"], span.attributes.get("error.type")) == (outcome, error_type)
    assert span.status.status_code is (StatusCode.ERROR if error_type else StatusCode.UNSET)


def test_an_invalid_body_has_the_type_of_its_validator(telemetry: Telemetry) -> None:
    app = retryrmq.App(middleware=[telemetry.middleware.consume])

    @app.consume("orders", dlx=True)
    def handle(order: dict[str, Any]) -> None: ...

    simulate_blocking(app, "orders", ["[7]"])
    (span,) = telemetry.spans("process orders")
    assert span.attributes is not None
    assert (span.attributes["retryrmq.outcome"], span.attributes["error.type"]) == ("undecodable", "ValidationError")


def test_timeouts(broker: Broker, telemetry: Telemetry) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url, **telemetry.options)
    go_on = threading.Event()
    # The span must begin within the limit.
    options: Any = {"dlx": True, "retry": "fixed(1s, retries=0)", "handler_timeout": "1s"}

    @app.consume(queue, **options)
    async def handle(msg: retryrmq.Message) -> None:
        await asyncio.sleep(3600)

    @app.consume(f"{queue}.threads", **options)
    def stuck(msg: retryrmq.Message) -> None:
        go_on.wait(60)

    async def main() -> None:
        async with app:
            for each in (queue, f"{queue}.threads"):
                await app.publish(each, "7")
                await soon("it is parked", lambda each=each: app.stats()[each].parked == 1)
            go_on.set()
            await soon("the late span has ended", lambda: telemetry.spans(f"process {queue}.threads"))

    asyncio.run(main())
    (cancelled,) = telemetry.spans(f"process {queue}")
    (late,) = telemetry.spans(f"process {queue}.threads")
    assert cancelled.attributes is not None and late.attributes is not None
    assert (cancelled.attributes["retryrmq.outcome"], cancelled.attributes["error.type"]) == ("retry", "HandlerTimeout")
    assert (late.attributes["retryrmq.outcome"], late.attributes["error.type"]) == ("retry", "HandlerTimeout")
    assert late.status.status_code is StatusCode.ERROR


def test_without_an_sdk_messages_are_handled(broker: Broker) -> None:
    """In a process of its own, without any provider."""
    program = f"""
import sys
import retryrmq
from retryrmq.opentelemetry import OpenTelemetry
telemetry = OpenTelemetry()
with retryrmq.connect_blocking({broker.url!r}, middleware=[telemetry.consume], publish_middleware=[telemetry.publish]) as client:
    def handle(msg):
        print(msg.headers)
        consumer.close()
    consumer = client.consume({broker.queue()!r}, handle, dlx=True)
    consumer.start()
    client.publish(consumer.queue, "7")
    consumer.run()
    print("opentelemetry.sdk" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert said.stdout.split() == ["{}", "False"], said.stderr


def test_without_the_api_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; import retryrmq; import retryrmq.opentelemetry"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ImportError: retryrmq.opentelemetry needs the API: pip install 'retryrmq[opentelemetry]'" in said.stderr


def test_what_settles_itself_before_its_timeout_is_not_late(broker: Broker, telemetry: Telemetry) -> None:
    queue = broker.queue()
    go_on = threading.Event()

    def handle(msg: retryrmq.Message) -> None:
        msg.park("by hand")
        if msg.text() == "waits":
            go_on.wait(60)

    with retryrmq.connect_blocking(broker.url, **telemetry.options) as client:
        options: Any = {"dlx": True, "handler_timeout": "8s", "concurrency": 1}
        with client.consume(queue, handle, **options) as consumer:
            client.publish(queue, "waits")
            client.publish(queue, "next")  # begins only after the first has timed out, and has been replaced
            eventually("the next one is handled", lambda: len(telemetry.spans(f"process {queue}")) == 1)
            go_on.set()
            eventually("both are done", lambda: len(telemetry.spans(f"process {queue}")) == 2)
            eventually("both are parked", lambda: consumer.stats().parked == 2)
    for span in telemetry.spans(f"process {queue}"):
        assert span.attributes is not None and span.attributes["retryrmq.outcome"] == "settled"
        assert "error.type" not in span.attributes


def test_a_class_of_errors_is_a_failed_answer(telemetry: Telemetry) -> None:
    app = retryrmq.App(middleware=[telemetry.middleware.consume])

    @app.consume("orders", dlx=True, batch=2, retry="fixed(1s, retries=0)")
    def handle(messages: list[retryrmq.Message]) -> list[type[Exception]]:
        return [KeyError]

    simulate_blocking(app, "orders", ["7"])
    (span,) = telemetry.spans("process orders")
    assert span.attributes is not None
    assert (span.attributes["retryrmq.failed_messages"], span.attributes["error.type"]) == (1, "KeyError")
    assert span.status.status_code is StatusCode.ERROR


def test_queues_that_the_broker_has_named_are_anonymous(broker: Broker, telemetry: Telemetry) -> None:
    with retryrmq.connect_blocking(broker.url, **telemetry.options) as client, pytest.raises(retryrmq.UnroutableError):
        client.publish("amq.gen-x7", "7")
    (span,) = telemetry.spans("publish (anonymous)")
    assert span.attributes is not None and span.attributes["messaging.destination.name"] == "amq.gen-x7"
    (point,) = telemetry.points("messaging.client.sent.messages")
    assert point.attributes["messaging.destination.name"] == "(anonymous)"
