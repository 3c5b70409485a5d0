"""The testing module: the real decisions on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import retryrmq
from retryrmq.testing import simulate


def app_with(handler: Callable[..., Any], **options: Any) -> retryrmq.App:
    app = retryrmq.App("amqp://localhost")
    app.consume("orders", **options)(handler)
    return app


def test_a_message_walks_through_the_policy_and_is_parked(simulate_app: Callable[..., Any]) -> None:
    def handle(msg: retryrmq.Message) -> None:
        raise ValueError(f"attempt {msg.attempt}")

    result = simulate_app(app_with(handle, dlx=True), "orders", [b"7"])
    assert [attempt.at.total_seconds() for attempt in result.attempts] == [0, 1, 5, 21, 85, 341]
    assert [attempt.number for attempt in result.attempts] == [1, 2, 3, 4, 5, 6]
    (parked,) = result.parked
    assert parked.reason == "exhausted"
    assert parked.message.headers["x-retry-error"] == "attempt 6"
    assert "attempt 6" in parked.message.headers["x-retry-error-stack"]
    assert [entry.error for entry in parked.message.history] == [f"attempt {n}" for n in range(1, 7)]
    assert result.elapsed == timedelta(seconds=341)


def test_every_way_out() -> None:
    async def handle(msg: retryrmq.Message) -> None:
        body = msg.text()
        await asyncio.sleep(0)
        if body == "fatal":
            raise KeyError(body)
        if body == "park":
            raise retryrmq.Park("no such customer")
        if body == "after" and msg.attempt == 1:
            raise retryrmq.RetryAfter("2h")
        if body == "defer" and not msg.headers.get("x-retry-deferrals"):
            raise retryrmq.Defer("1m")
        if body == "rule":
            raise ConnectionResetError("gone")

    rules = [retryrmq.Rule("fixed(7s, retries=1)", error=OSError)]
    app = app_with(handle, dlx=True, fatal=LookupError, rules=rules)
    result = asyncio.run(simulate(app, "orders", ["ok", "fatal", "park", "after", "defer", "rule"]))
    assert [(end.became, end.reason) for end in result.ends] == [
        ("acked", None),
        ("parked", "fatal"),
        ("parked", "requested"),
        ("acked", None),
        ("acked", None),
        ("parked", "exhausted"),
    ]
    assert [attempt.at for attempt in result.attempts_of(5)] == [timedelta(), timedelta(seconds=7)]
    assert [attempt.number for attempt in result.attempts_of(4)] == [1, 1]
    assert result.attempts_of(3)[1].at == timedelta(hours=2)


def test_without_dlx_a_failure_is_rejected_and_without_park_dropped(simulate_app: Callable[..., Any]) -> None:
    def handle(msg: retryrmq.Message) -> None:
        raise ValueError

    assert simulate_app(app_with(handle), "orders", [b""]).ends[0].became == "rejected"
    dropped = app_with(handle, dlx=True, retry="fixed(1s, retries=0)", park=False)
    assert simulate_app(dropped, "orders", [b""]).ends[0].became == "dropped"


@pytest.mark.parametrize(("limit", "text"), [("20ms", "20ms"), ("1.5ms", "1.5ms")])
def test_a_handler_that_is_late_has_failed(limit: str, text: str) -> None:
    async def handle(msg: retryrmq.Message) -> None:
        await asyncio.sleep(3600)

    app = app_with(handle, dlx=True, retry="fixed(1s, retries=1)", handler_timeout=limit)
    (parked,) = asyncio.run(simulate(app, "orders", [b""])).parked
    assert parked.message.headers["x-retry-error"] == f"the handler took longer than {text}"
    assert parked.message.headers["x-retry-error-type"] == "HandlerTimeout"


def test_what_was_settled_by_hand_counts_first(simulate_app: Callable[..., Any]) -> None:
    def handle(msg: retryrmq.Message) -> None:
        if msg.text() == "park":
            msg.park("no such customer")
            msg.ack()
        elif msg.text() == "retry" and msg.attempt == 1:
            msg.retry("busy", delay="7s")
        else:
            msg.ack()
            raise ValueError("too late")

    result = simulate_app(app_with(handle, dlx=True), "orders", ["park", "retry", "ack"])
    assert [(end.became, end.reason) for end in result.ends] == [
        ("parked", "requested"),
        ("acked", None),
        ("acked", None),
    ]
    assert result.ends[1].at == timedelta(seconds=7)


def test_cancelling_a_simulation_is_no_failed_attempt() -> None:
    attempts: list[int] = []

    async def handle(msg: retryrmq.Message) -> None:
        attempts.append(msg.attempt)
        await asyncio.sleep(3600)

    async def main() -> None:
        task = asyncio.ensure_future(simulate(app_with(handle, dlx=True), "orders", [b""]))
        while not attempts:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert attempts == [1]


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
def test_whatever_a_coroutine_raises_is_a_failed_attempt(error: BaseException) -> None:
    async def handle(msg: retryrmq.Message) -> None:
        raise error

    (parked,) = asyncio.run(simulate(app_with(handle, dlx=True, fatal=type(error)), "orders", [b""])).parked
    assert parked.reason == "fatal"


@pytest.mark.parametrize("messages", ["abc", b"abc", {"body": b""}, None, 5])
def test_a_list_of_messages_is_wanted(simulate_app: Callable[..., Any], messages: Any) -> None:
    with pytest.raises(TypeError, match="list of messages"):
        simulate_app(app_with(print), "orders", messages)


def test_a_def_that_returns_a_coroutine_is_told(simulate_app: Callable[..., Any]) -> None:
    async def later() -> None: ...

    result = simulate_app(app_with(lambda msg: later(), dlx=True, retry="fixed(1s, retries=0)"), "orders", [b""])
    assert "async def" in str(result.attempts[0].error)


def test_a_def_that_returns_a_generator_is_told(simulate_app: Callable[..., Any]) -> None:
    result = simulate_app(
        app_with(lambda msg: (n for n in "a"), dlx=True, retry="fixed(1s, retries=0)"), "orders", [b""]
    )
    assert "generator" in str(result.attempts[0].error)


class Unfinished(retryrmq.RetryAfter):
    def __init__(self) -> None:
        self.delay = float("nan")


@pytest.mark.parametrize("error", [ValueError("\udcff"), Unfinished()])
def test_an_error_that_cannot_be_handed_over_is_a_failed_attempt(
    simulate_app: Callable[..., Any], error: Exception
) -> None:
    def handle(msg: retryrmq.Message) -> None:
        raise error

    result = simulate_app(app_with(handle, dlx=True, retry="fixed(1s, retries=0)"), "orders", [b""])
    assert result.parked[0].message.headers["x-retry-error"] == (
        str(error).replace("\udcff", "\\udcff") or "Unfinished"
    )


def test_what_cannot_be_simulated_is_refused() -> None:
    app = app_with(print, dlx=True)
    with pytest.raises(ValueError, match="'orders'"):
        asyncio.run(simulate(app, "invoices", []))
    with pytest.raises(TypeError, match="`app`"):
        asyncio.run(simulate("orders", "orders", []))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs a `body`"):
        asyncio.run(simulate(app, "orders", [{"headers": {}}]))


def test_what_a_handler_publishes_is_collected() -> None:
    app = retryrmq.App("amqp://localhost")

    @app.consume("orders", dlx=True, retry="fixed(1m, retries=1)")
    async def handle(msg: retryrmq.Message) -> None:
        await app.publish("invoices", msg.body, headers={"kind": "new"}, message_id="7", delay="5s")
        await asyncio.gather(app.client.publish("eu", "x", exchange="shop"))
        if msg.attempt == 1:
            raise ValueError

    async def main() -> None:
        result, other = await asyncio.gather(*(simulate(app, "orders", messages) for messages in (["a", "b"], ["c"])))
        assert [(it.index, it.message.text()) for it in other.published] == [(0, "c"), (0, "x"), (0, "c"), (0, "x")]
        first, second, *_ = result.published
        assert [it.index for it in result.published] == [0, 0, 1, 1, 0, 0, 1, 1]
        assert [it.at for it in result.published[::4]] == [timedelta(), timedelta(minutes=1)]
        assert (first.message.routing_key, first.message.body, first.message.exchange) == ("invoices", b"a", "")
        assert (first.message.headers, first.message.message_id) == ({"kind": "new"}, "7")
        assert first.delay == timedelta(seconds=5)
        assert (second.message.routing_key, second.message.exchange, second.delay) == ("eu", "shop", None)
        with pytest.raises(retryrmq.ClosedError):
            _ = app.client  # only in a handler

    asyncio.run(main())


def test_a_thread_publishes_in_a_simulation(simulate_app: Callable[..., Any]) -> None:
    app = retryrmq.App("amqp://localhost")

    @app.consume("orders", dlx=True, retry="fixed(1s, retries=0)")
    def handle(msg: retryrmq.Message) -> None:
        if msg.text() == "publish":
            app.blocking.publish("invoices", "7", priority=3, headers={"x-retry-crashes": 99})
            assert "simulation" in repr(app.blocking)
        elif msg.text() == "header":
            app.blocking.publish("invoices", "7", headers={"bad": object()})
        elif msg.text() == "delay":
            app.blocking.publish("invoices", "7", delay="1s", exchange="shop")
        else:
            with app.blocking.parked("orders"):
                pass

    result = simulate_app(app, "orders", ["publish", "header", "delay", "parked"])
    (published,) = result.published
    assert published.message.properties["priority"] == 3
    assert [end.became for end in result.ends] == ["acked", "parked", "parked", "parked"]
    assert [type(attempt.error) for attempt in result.attempts[1:]] == [
        retryrmq.InvalidTypeError,
        retryrmq.InvalidOptionError,
        retryrmq.ClosedError,
    ]
