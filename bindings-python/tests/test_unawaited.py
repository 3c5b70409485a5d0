"""A call that a handler forgets to await does nothing, so its message is not acknowledged."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import retryrmq
from conftest import Broker, soon
from retryrmq.testing import simulate

FAILS_AT_ONCE: dict[str, Any] = {"dlx": True, "retry": "fixed(50ms, retries=0)"}


def forgetful(app: retryrmq.App, kind: str, other: str) -> Callable[[retryrmq.Message], Any]:
    def threaded(msg: retryrmq.Message) -> None:
        app.publish(other, msg.body)  # type: ignore[unused-coroutine]

    async def looped(msg: retryrmq.Message) -> None:
        app.publish(other, msg.body)  # type: ignore[unused-coroutine]
        await asyncio.sleep(0)

    return threaded if kind == "def" else looped


@pytest.mark.parametrize("options", [{}, {"handler_timeout": "10m"}], ids=["unlimited", "limited"])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_forgotten_publish_is_a_failed_attempt(broker: Broker, kind: str, options: dict[str, Any]) -> None:
    queue, other = broker.queue(), broker.queue()
    app = retryrmq.App(broker.url)
    app.consume(queue, **FAILS_AT_ONCE, **options)(forgetful(app, kind, other))

    async def main() -> None:
        async with app:
            async with app.client.consume(other, dlx=True):
                pass
            await app.publish(queue, "a")
            await soon("it is parked", lambda: app.stats()[queue].parked == 1)
            async with app.parked(queue) as parked:
                async for it in parked:
                    assert it.error_type == "TypeError" and "`app.publish(…)` and did not await it" in it.error
                    assert ("app.blocking.publish(…)" in it.error) is (kind == "def")
                    assert "`await app.publish(…)`" in it.error

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
        gc.collect()
    with retryrmq.connect_blocking(broker.url) as client, client.consume(other, dlx=True) as consumer:
        client.publish(other, "the last one")
        for msg in consumer:
            assert msg.text() == "the last one"
            msg.ack()
            break


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_forgotten_publish_fails_in_a_simulation(kind: str, simulate_app: Callable[..., Any]) -> None:
    app = retryrmq.App()
    app.consume("orders", **FAILS_AT_ONCE)(forgetful(app, kind, "other"))
    result = simulate_app(app, "orders", [b"7"])
    assert not result.published
    assert "did not await it" in str(result.attempts[0].error)


def test_calls_that_others_await_later_are_not_forgotten(broker: Broker) -> None:
    queue, other = broker.queue(), broker.queue()
    app = retryrmq.App(broker.url)
    tasks: list[Any] = []
    got: list[str] = []

    @app.consume(queue, **FAILS_AT_ONCE)
    async def handle(msg: retryrmq.Message) -> None:
        for number in range(200):
            await app.publish(other, str(number))
        tasks.append(asyncio.create_task(app.publish(other, "task")))  # it has not begun when the handler returns

    @app.consume(queue + ".def", **FAILS_AT_ONCE)
    def threaded(msg: retryrmq.Message) -> None:
        tasks.append(asyncio.run_coroutine_threadsafe(app.publish(other, "thread"), loop[0]))

    @app.consume(other, dlx=True)
    async def keep(msg: retryrmq.Message) -> None:
        got.append(msg.text())

    loop: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loop.append(asyncio.get_running_loop())
        async with app:
            await app.publish(queue, "a")
            await app.publish(queue + ".def", "b")
            await soon("all came", lambda: len(got) == 202 and {"task", "thread"} <= set(got))
            await soon(
                "both are acknowledged", lambda: app.stats()[queue].acked == app.stats()[queue + ".def"].acked == 1
            )
            assert not app.stats()[queue].failed and not app.stats()[queue + ".def"].failed

    asyncio.run(main())


def test_what_runs_a_loop_of_its_own_names_the_right_call_on_a_loop(simulate_app: Callable[..., Any]) -> None:
    app = retryrmq.App("amqp://127.0.0.1:1")
    app.consume("orders", dlx=True)(lambda msg: None)

    async def main() -> None:
        with pytest.raises(retryrmq.InvalidTypeError, match=r"await app\.serve\(\)"):
            app.run()
        with pytest.raises(retryrmq.InvalidTypeError, match=r"await retryrmq\.testing\.simulate\(app, …\)"):
            simulate_app(app, "orders", [b"7"])
        assert len((await simulate(app, "orders", [b"7"])).acked) == 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
        gc.collect()


def test_what_asks_whether_a_method_is_asynchronous_is_told_so() -> None:
    """Web frameworks ask so for their background tasks, and a mock for what it stands in for."""
    classes = [it for it in vars(retryrmq).values() if inspect.isclass(it)]
    found = [(it, name) for it in classes for name, method in vars(it).items() if hasattr(method, "__wrapped__")]
    methods = {(it, name) for it, name in found if inspect.iscoroutinefunction(inspect.unwrap(getattr(it, name)))}
    assert {(retryrmq.App, "publish"), (retryrmq.App, "serve"), (retryrmq.Client, "close")} <= methods
    for it, name in sorted(methods, key=str):
        bound = getattr(it, name).__get__(object())
        for method in (getattr(it, name), bound):
            assert inspect.iscoroutinefunction(method), method
            if sys.version_info < (3, 14):  # deprecated
                assert asyncio.iscoroutinefunction(method), method
        assert isinstance(getattr(mock.MagicMock(spec=it), name), mock.AsyncMock)
        assert "self" in inspect.signature(getattr(it, name)).parameters
        assert "self" not in inspect.signature(bound).parameters
