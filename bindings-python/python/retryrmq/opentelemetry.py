"""Traces and metrics for OpenTelemetry: ``pip install 'retryrmq[opentelemetry]'``.

::

    from retryrmq.opentelemetry import OpenTelemetry

    telemetry = OpenTelemetry()
    app = retryrmq.App(middleware=[telemetry.consume], publish_middleware=[telemetry.publish])

Spans and metrics have the names and attributes of the semantic conventions for messaging. Without an SDK nothing is recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.propagators.textmap import Getter
    from opentelemetry.trace import SpanKind, Status, StatusCode
except ImportError as error:
    raise ImportError("retryrmq.opentelemetry needs the API: pip install 'retryrmq[opentelemetry]'") from error

from . import _native
from ._native import Message
from ._unawaited import current_attempt
from .errors import RetryRmqError
from .middleware import DualMiddleware, Publishing, PublishNext
from .outcome import described, error_type_of, requested_end

#: The version of the semantic conventions.
_SCHEMA = "https://opentelemetry.io/schemas/1.39.0"
#: The bounds that the conventions give for durations, in seconds.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

_Attributes = dict[str, str | int]


class _Headers(Getter[Mapping[str, Any]]):
    """Reads headers that anybody may have written: a propagator expects text."""

    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        value = carrier.get(key)
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        return list(carrier)


_HEADERS = _Headers()


class OpenTelemetry:
    """Middleware that traces and measures attempts and publishes. One object may serve any number of apps and clients.

    The providers are the global ones by default. The global propagator carries the context in the headers.
    """

    #: For ``middleware``: a span ``process {queue}`` of the kind CONSUMER for each attempt, a child of the span that published the message. For a
    #: batch one span, with links to those.
    consume: DualMiddleware
    #: For ``publish_middleware``: a span ``publish {queue or exchange}`` of the kind PRODUCER for each publish, whose context goes into the
    #: headers.
    publish: DualMiddleware

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer("retryrmq", _native.VERSION, tracer_provider, _SCHEMA)
        meter = metrics.get_meter("retryrmq", _native.VERSION, meter_provider, _SCHEMA)
        self._processing = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Number of messages that were delivered to the application.",
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Number of messages producer attempted to send to the broker.",
        )
        self.consume = DualMiddleware(self._consume, self._consume_blocking, batches=True)
        self.publish = DualMiddleware(self._publish, self._publish_blocking)

    async def _consume(self, it: Message | list[Message], call_next: Callable[[Any], Any]) -> Any:
        if isinstance(it, list):
            with self._batch(it) as answered:
                return answered(await call_next(it))
        with self._attempt(it):
            return await call_next(it)

    def _consume_blocking(self, it: Message | list[Message], call_next: Callable[[Any], Any]) -> Any:
        if isinstance(it, list):
            with self._batch(it) as answered:
                return answered(call_next(it))
        with self._attempt(it):
            return call_next(it)

    async def _publish(self, publish: Publishing, call_next: PublishNext) -> None:
        with self._publishing(publish):
            await call_next(publish)

    def _publish_blocking(self, publish: Publishing, call_next: PublishNext) -> None:
        with self._publishing(publish):
            call_next(publish)

    @contextlib.contextmanager
    def _attempt(self, msg: Message) -> Iterator[None]:
        measured: _Attributes = {
            "messaging.system": "rabbitmq",
            "messaging.operation.name": "process",
            "messaging.destination.name": msg.queue,
        }
        details = {
            "messaging.operation.type": "process",
            "messaging.destination.name": _destination(msg.exchange, msg.routing_key, msg.queue),
            "messaging.rabbitmq.destination.routing_key": msg.routing_key,
            "messaging.message.id": msg.message_id,
            "messaging.message.conversation_id": msg.properties.get("correlation_id"),
            "messaging.message.body.size": len(msg.body),
            "retryrmq.attempt": msg.attempt,
        }
        self._consumed.add(1, dict(measured))
        # A root without a context in the headers, not a child of whatever runs the consumer.
        parent = _extracted_context(msg.headers)
        span = self._tracer.start_span(
            f"process {msg.queue}", parent, SpanKind.CONSUMER, {**measured, **_present(details)}, record_exception=False
        )
        token = contexts.attach(trace.set_span_in_context(span, parent))
        began = time.perf_counter()
        try:
            yield
        except BaseException as error:
            outcome, error_type = _outcome(error)
            span.set_attribute("retryrmq.outcome", outcome)
            if outcome != "defer":
                measured["error.type"] = error_type
                _record_error(span, error, error_type)
            raise
        else:
            if _has_timed_out():
                _mark_timed_out(span, measured)
            else:
                span.set_attribute("retryrmq.outcome", "settled" if msg._is_settled else "ack")
        finally:
            self._processing.record(time.perf_counter() - began, measured)
            contexts.detach(token)
            span.end()

    @contextlib.contextmanager
    def _batch(self, messages: list[Message]) -> Iterator[Callable[[Any], Any]]:
        """One span, with links, since its messages belong to several traces. Yields what is told the answers of the handler."""
        queue, count = messages[0].queue, len(messages)
        measured: _Attributes = {
            "messaging.system": "rabbitmq",
            "messaging.operation.name": "process",
            "messaging.destination.name": queue,
        }
        self._consumed.add(count, dict(measured))
        details: _Attributes = {"messaging.operation.type": "process", "messaging.batch.message_count": count}
        linked = [
            trace.get_current_span(_extracted_context(message.headers)).get_span_context() for message in messages
        ]
        span = self._tracer.start_span(
            f"process {queue}",
            contexts.Context(),
            SpanKind.CONSUMER,
            {**measured, **details},
            [trace.Link(link) for link in linked if link.is_valid],
            record_exception=False,
        )

        def answered(answers: Any) -> Any:
            if _has_timed_out():
                span.set_attribute("retryrmq.failed_messages", count)
                _mark_timed_out(span, measured)
                return answers
            each = [_result_error(it) for it in answers] if isinstance(answers, list | tuple) else []
            ends = ["ack" if it is None else _outcome(it)[0] for it in each] or ["ack"]
            if len(set(ends)) == 1:
                span.set_attribute("retryrmq.outcome", ends[0])
            failures = [it for it, end in zip(each, ends, strict=False) if it is not None and end != "defer"]
            span.set_attribute("retryrmq.failed_messages", len(failures))
            if failures:
                first = failures[0]
                measured["error.type"] = error_type_of(first)
                _record_error(span, first, error_type_of(first))
                text = f"{len(failures)} of {count} messages failed, the first: {described(first)}"
                span.set_status(Status(StatusCode.ERROR, text))
            return answers

        token = contexts.attach(trace.set_span_in_context(span, contexts.Context()))
        began = time.perf_counter()
        try:
            yield answered
        except BaseException as error:
            outcome, error_type = _outcome(error)
            span.set_attribute("retryrmq.outcome", outcome)
            span.set_attribute("retryrmq.failed_messages", 0 if outcome == "defer" else count)
            if outcome != "defer":
                measured["error.type"] = error_type
                _record_error(span, error, error_type)
            raise
        finally:
            self._processing.record(time.perf_counter() - began, measured)
            contexts.detach(token)
            span.end()

    @contextlib.contextmanager
    def _publishing(self, publish: Publishing) -> Iterator[None]:
        destination = _low_cardinality_destination(publish)
        measured: _Attributes = {
            "messaging.system": "rabbitmq",
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": destination,
        }
        details = {
            "messaging.destination.name": _destination(publish.exchange, publish.routing_key),
            "messaging.rabbitmq.destination.routing_key": publish.routing_key,
            "messaging.message.id": publish.properties.get("message_id"),
            "messaging.message.conversation_id": publish.properties.get("correlation_id"),
            "messaging.message.body.size": len(publish.body),
        }
        span = self._tracer.start_span(
            f"publish {destination}", None, SpanKind.PRODUCER, {**measured, **_present(details)}, record_exception=False
        )
        token = contexts.attach(trace.set_span_in_context(span))
        began = time.perf_counter()
        try:
            propagate.inject(publish.headers)
            yield
        except BaseException as error:
            # Ours has a code that is the same in every language.
            error_type = error.code if isinstance(error, RetryRmqError) else error_type_of(error)
            measured["error.type"] = error_type
            _record_error(span, error, error_type)
            raise
        finally:
            self._operation.record(time.perf_counter() - began, measured)
            self._sent.add(1, measured)
            contexts.detach(token)
            span.end()


def _low_cardinality_destination(publish: Publishing) -> str:
    """Where a message is published to, as a name of which there are few: the broker names the queues of replies."""
    if publish.exchange:
        return publish.exchange
    return "(anonymous)" if publish.routing_key.startswith("amq.") else publish.routing_key or "amq.default"


def _destination(exchange: str, routing_key: str, queue: str = "") -> str:
    """A destination as the conventions for RabbitMQ name it."""
    parts = (exchange, routing_key, "" if queue == routing_key else queue)
    return ":".join(part for part in parts if part) or "amq.default"


def _present(attributes: Mapping[str, str | int | None]) -> _Attributes:
    return {name: value for name, value in attributes.items() if value not in (None, "")}


def _extracted_context(headers: Mapping[str, Any]) -> contexts.Context:
    empty = contexts.Context()
    try:
        return propagate.extract(headers, empty, _HEADERS)
    except Exception:  # a propagator's that cannot read what a stranger wrote
        return empty


def _outcome(error: BaseException) -> tuple[str, str]:
    """What the end of the attempt is called, and the type of its error."""
    if _has_timed_out():
        return "retry", _TIMEOUT_TYPE
    if isinstance(error, asyncio.CancelledError):
        return "requeue", error_type_of(error)
    return requested_end(error), error_type_of(error)


#: As the record calls it.
_TIMEOUT_TYPE = "HandlerTimeout"


def _has_timed_out() -> bool:
    """Whether the attempt has ended by its timeout, whatever the handler returns or raises."""
    mark = current_attempt.get()
    return mark is not None and mark.timed is not None and mark.timed.is_late


def _mark_timed_out(span: trace.Span, measured: _Attributes) -> None:
    measured["error.type"] = _TIMEOUT_TYPE
    span.set_attributes({"error.type": _TIMEOUT_TYPE, "retryrmq.outcome": "retry"})
    span.set_status(Status(StatusCode.ERROR, f"{_TIMEOUT_TYPE}: the handler took longer than its timeout"))


def _result_error(answer: Any) -> BaseException | None:
    """The error that an answer of a batch is, also as a class."""
    if isinstance(answer, type) and issubclass(answer, BaseException):
        try:
            return answer()
        except BaseException as error:
            return error
    return answer if isinstance(answer, BaseException) else None


def _record_error(span: trace.Span, error: BaseException, error_type: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR, described(error)))
    with contextlib.suppress(Exception):  # a user's error may raise when it is shown
        span.record_exception(error)
