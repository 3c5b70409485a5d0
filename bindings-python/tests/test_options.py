"""Options of consumers, clients and messages: checked at the call, before there is a connection."""

from __future__ import annotations

import functools
from datetime import datetime
from typing import Any

import pytest
import retryrmq
from conftest import Broker
from retryrmq.client import outgoing


@pytest.mark.parametrize(
    ("option", "value", "kind"),
    [
        ("dlx", "yes", TypeError),
        ("retry", 5, TypeError),
        ("retry", "whenever", ValueError),
        ("retry", "\udcff", ValueError),
        ("strategy", 5, TypeError),
        ("strategy", "hope", ValueError),
        ("rules", "error=a => fixed(1s)", TypeError),
        ("rules", [5], TypeError),
        ("rules", ["error => fixed(1s)"], ValueError),
        ("rules", ["\udcff => fixed(1s)"], ValueError),
        ("rules", [retryrmq.Rule("fixed(1s)", error="\udcff")], ValueError),
        ("rules", [retryrmq.Rule("fixed(1s)", headers={"kind": "\udcff"})], ValueError),
        ("prefetch", 0, ValueError),
        ("prefetch", 65536, ValueError),
        ("prefetch", 1.5, TypeError),
        ("prefetch_bytes", 0, ValueError),
        ("prefetch_bytes", "64MiB", TypeError),
        ("concurrency", 0, ValueError),
        ("concurrency", True, TypeError),
        ("handler_timeout", 5, TypeError),
        ("handler_timeout", "0s", ValueError),
        ("drain_timeout", "soon", ValueError),
        ("park", 1, TypeError),
        ("pause", 0.5, TypeError),
        ("declare", 1, TypeError),
        ("work_queue", 5, TypeError),
        ("work_queue", ["quorum"], TypeError),
        ("work_queue", "stream", ValueError),
        ("work_queue", {5: 1}, TypeError),
        ("work_queue", {"x-max-priority": 1.5}, TypeError),
        ("work_queue", {"x-max-priority": None}, TypeError),
        ("work_queue", {"x-max-priority": 2**63}, ValueError),
        ("work_queue", {"x-queue-mode": "\udcff"}, ValueError),
        ("work_queue", {"x-queue-type": "stream"}, ValueError),
        ("reserved_name", "yes", TypeError),
        ("crash_limit", 0, ValueError),
        ("defer_limit", "1", TypeError),
        ("on_event", 5, TypeError),
        ("fatal", "ValueError", TypeError),
        ("fatal", (5,), TypeError),
        ("colour", "red", TypeError),
    ],
)
def test_an_option_that_cannot_work_is_named_at_the_call(option: str, value: Any, kind: type[Exception]) -> None:
    app = retryrmq.App("amqp://localhost")
    with pytest.raises(kind) as refused:
        app.consume("orders", **{"dlx": True, option: value})
    assert isinstance(refused.value, retryrmq.RetryRmqError)
    assert option.rstrip("s") in str(refused.value)


def test_an_unknown_option_is_told_the_nearest_one() -> None:
    app = retryrmq.App("amqp://localhost")
    with pytest.raises(TypeError, match=r"no option `retires`; did you mean `retry`\? The options are dlx, retry"):
        app.consume("orders", dlx=True, retires=5)  # type: ignore[call-arg]


def test_a_listener_that_nobody_would_await_is_refused() -> None:
    async def listener(event: retryrmq.Event) -> None: ...

    app = retryrmq.App("amqp://localhost")
    with pytest.raises(TypeError, match="on_event"):
        app.consume("orders", on_event=listener)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "option", [{"fatal": ValueError}, {"park": False}, {"retry": "fixed(1s)"}, {"work_queue": "classic"}]
)
def test_what_needs_dlx_says_so(option: dict[str, Any]) -> None:
    app = retryrmq.App("amqp://localhost")
    with pytest.raises(retryrmq.InvalidOptionError, match=f"`{next(iter(option))}` needs `dlx`"):
        app.consume("orders", **option)
    app.consume("orders", fatal=(), park=True)


@pytest.mark.parametrize("option", [{"fatal": ValueError}, {"concurrency": 2}, {"handler_timeout": "1s"}])
def test_what_needs_a_handler_says_so(broker: Broker, option: dict[str, Any]) -> None:
    with retryrmq.connect_blocking(broker.url) as client:
        for consume in (client.consume, retryrmq.Client(client._native).consume):
            with pytest.raises(retryrmq.InvalidOptionError, match=f"`{next(iter(option))}` needs a handler"):
                consume("orders", dlx=True, **option)
            consume("orders", lambda msg: None, dlx=True, **option)


@pytest.mark.parametrize(
    "options", [{"failures": 1.5}, {"failures": 1.0}, {"failures": float("nan")}, {"duration": "0s"}, {"window": 0}]
)
def test_a_pause_that_cannot_work_is_refused_where_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(retryrmq.InvalidOptionError):
        retryrmq.Pause(**options)


@pytest.mark.parametrize(
    "handler", [lambda: None, lambda msg, other: None, functools.partial(print, sep=""), lambda msg, *, wanted: None]
)
def test_a_handler_is_called_with_the_message_alone(handler: Any) -> None:
    app = retryrmq.App("amqp://localhost")
    if isinstance(handler, functools.partial):
        app.consume("orders")(handler)
        return
    with pytest.raises(retryrmq.InvalidTypeError, match="the message and nothing else"):
        app.consume("orders")(handler)


def test_with_in_place_of_async_with_is_told() -> None:
    app: Any = retryrmq.App("amqp://localhost")
    with pytest.raises(TypeError, match="async with"), app:
        pass


def test_a_near_miss_is_told() -> None:
    app = retryrmq.App("amqp://localhost")
    with pytest.raises(TypeError, match="did you mean `dlx`"):
        app.consume("orders", dlq=True)  # type: ignore[call-arg]


def test_options_of_a_client_are_checked_when_an_app_is_made() -> None:
    for options in ({"app_version": 5}, {"queue_type": 5}):
        with pytest.raises(TypeError, match=next(iter(options))):
            retryrmq.App("amqp://localhost", **options)  # type: ignore[arg-type]
    with pytest.raises(retryrmq.InvalidOptionError, match="stream"):
        retryrmq.App("amqp://localhost", queue_type="stream")  # type: ignore[arg-type]


def generator(msg: retryrmq.Message) -> Any:
    yield msg


async def async_generator(msg: retryrmq.Message) -> Any:
    yield msg


class Callable:
    def __call__(self, msg: retryrmq.Message) -> Any:
        yield msg


@pytest.mark.parametrize(
    "handler", [generator, async_generator, functools.partial(generator), Callable(), functools.partial(Callable())]
)
def test_a_handler_with_a_stray_yield_is_refused(handler: Any) -> None:
    with pytest.raises(TypeError, match="yield"):
        retryrmq.App("amqp://localhost").consume("orders")(handler)


def test_names_and_addresses() -> None:
    with pytest.raises(retryrmq.InvalidUrlError):
        retryrmq.App("http://localhost")
    with pytest.raises(TypeError, match="`url`"):
        retryrmq.App(5)  # type: ignore[arg-type]
    app = retryrmq.App("amqp://guest:secret@localhost")
    assert "secret" not in repr(vars(app)["_plans"])
    with pytest.raises(ValueError, match="queue"):
        app.consume("")
    with pytest.raises(TypeError, match="`queue`"):
        app.consume(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="decorates a function"):
        app.consume("orders")(5)  # type: ignore[type-var]
    app.consume("orders")(print)
    with pytest.raises(ValueError, match="has a handler"):
        app.consume("orders")(print)
    with pytest.raises(retryrmq.ClosedError):
        _ = app.client
    with pytest.raises(TypeError, match="queue_type"):
        retryrmq.connect("amqp://localhost", queue_type=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="stream"):
        retryrmq.connect("amqp://localhost", queue_type="stream")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"body": 5}, TypeError, "`body` must be bytes or str, not int"),
        ({"body": {"a": 1}}, TypeError, "json.dumps()"),
        ({"routing_key": 5}, TypeError, "`routing_key`"),
        ({"exchange": 5}, TypeError, "`exchange`"),
        ({"delay": 5}, TypeError, "`delay`"),
        ({"timeout": "soon"}, ValueError, "`timeout`"),
        ({"expiration": "soon"}, ValueError, "`expiration`"),
        ({"priority": 256}, ValueError, "`priority`"),
        ({"priority": "1"}, TypeError, "`priority`"),
        ({"timestamp": 5}, TypeError, "`timestamp`"),
        ({"headers": [1]}, TypeError, "`headers`"),
        ({"mandatory": 1}, TypeError, "`mandatory`"),
        ({"persistent": "yes"}, TypeError, "`persistent`"),
        ({"message_id": 5}, TypeError, "`message_id`"),
        ({"colour": 5}, TypeError, "`colour`"),
        ({"body": "\udcff"}, ValueError, "`body` holds a lone surrogate"),
        ({"routing_key": "\udcff"}, ValueError, "`routing_key` holds a lone surrogate"),
        ({"message_id": "\udcff"}, ValueError, "`message_id` holds a lone surrogate"),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused(options: dict[str, Any], kind: type[Exception], says: str) -> None:
    routing_key, body = options.pop("routing_key", "orders"), options.pop("body", b"")
    with pytest.raises(kind) as refused:
        outgoing(routing_key, body, options)  # type: ignore[arg-type]
    assert says in str(refused.value)
    assert isinstance(refused.value, retryrmq.RetryRmqError)


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"kind": "\udcff"}, '`headers["kind"]` holds a lone surrogate'),
        ({"a": ["\udcff"]}, '`headers["a"][0]` holds a lone surrogate'),
        ({"\udcff": 1}, "a name in `headers` holds a lone surrogate"),
        ({5: 1}, "a name in `headers` must be a str, not int"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused(headers: dict[Any, Any], says: str) -> None:
    from retryrmq.testing import simulate_blocking

    app = retryrmq.App("amqp://localhost")
    app.consume("orders")(print)
    with pytest.raises(retryrmq.RetryRmqError) as refused:
        simulate_blocking(app, "orders", [{"body": b"", "headers": headers}])
    assert says in str(refused.value)


def test_signals_check_their_delay_where_they_are_raised() -> None:
    with pytest.raises(TypeError, match="`delay`"):
        retryrmq.RetryAfter(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`delay`"):
        retryrmq.Defer("soon")
    assert retryrmq.RetryAfter("1m").delay == 60.0
    with pytest.raises(TypeError, match="`reason`"):
        retryrmq.Park(5)  # type: ignore[arg-type]


def test_a_time_without_a_zone_is_refused() -> None:
    from retryrmq.testing import simulate_blocking

    app = retryrmq.App("amqp://localhost")
    app.consume("orders")(print)
    with pytest.raises(ValueError, match="time zone"):
        simulate_blocking(app, "orders", [{"body": b"", "timestamp": datetime(2026, 1, 1)}])
