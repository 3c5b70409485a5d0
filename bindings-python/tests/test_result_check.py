"""What a handler returns: mostly it does not matter, but work that nobody would ever do is no success."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import retryrmq
from conftest import Broker, soon
from retryrmq.testing import simulate_blocking

PARKS: dict[str, Any] = {"dlx": True, "retry": "fixed(50ms, retries=0)"}


async def inner() -> str:
    return "done"


async def outer() -> Any:
    return inner()


def steps() -> Iterator[int]:
    yield 1


async def async_steps() -> Any:
    yield 1


class Lazy:
    """Does its work when it is awaited, as a query of a database does."""

    def __await__(self) -> Any:
        raise AssertionError("nobody awaits it")
        yield


def pending() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def done() -> asyncio.Future[None]:
    future = pending()
    future.set_result(None)
    return future


def broken() -> asyncio.Future[None]:
    future = pending()
    future.set_exception(KeyError("in the future"))
    return future


def submitted() -> concurrent.futures.Future[None]:
    return concurrent.futures.Future()


def method() -> Callable[[], Any]:
    return Lazy().__await__


#: By name: what comes back, and what the error says.
UNDONE: dict[str, tuple[Callable[[], Any], str]] = {
    "coroutine": (inner, r"returned the coroutine `inner`, which nobody awaits"),
    "generator": (steps, r"returned the generator `steps`, which nobody runs"),
    "async generator": (async_steps, r"returned the async generator `async_steps`, which nobody runs"),
    "map": (lambda: map(print, [1]), r"returned a map, which does nothing before somebody iterates over it"),
    "filter": (lambda: filter(print, [1]), r"returned a filter, which does nothing before"),
    "zip": (lambda: zip(map(print, [1]), [2], strict=False), r"returned a zip, which does nothing before"),
    "starmap": (lambda: itertools.starmap(print, [(1,)]), r"returned a starmap, which does nothing before"),
    "chain": (lambda: itertools.chain(steps()), r"returned a chain, which does nothing before"),
    "lazy": (Lazy, r"returned a Lazy, which nobody awaits"),
    "submitted": (submitted, r"returned a Future that is not done; .*result\(\)"),
    "function": (lambda: inner, r"returned the function `inner`, which nobody calls"),
    "method": (method, r"returned the method `Lazy.__await__`, which nobody calls"),
    "partial": (lambda: functools.partial(inner), r"returned a partial, which nobody calls"),
    "list": (lambda: ["fine", inner(), inner()], r"returned a list with the coroutine `inner`, .*asyncio\.gather"),
    "tuple": (lambda: (Lazy(), None), r"returned a tuple with a Lazy, .*asyncio\.gather"),
    "dict": (lambda: {"a": inner()}, r"returned a dict with the coroutine `inner`, .*asyncio\.gather"),
}
#: Those that an event loop is needed for.
UNDONE_ON_LOOPS: dict[str, tuple[Callable[[], Any], str]] = {
    "future": (pending, r"returned a Future that is not done; .*await"),
    "task": (lambda: asyncio.ensure_future(asyncio.sleep(3600)), r"returned a Task that is not done; .*await"),
}
FINE: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "number": lambda: 7,
    "class": lambda: ValueError,
    "mock": mock.Mock(),
    "magic": mock.MagicMock(),
    "iterator": lambda: iter([1, 2]),
    "range": lambda: range(7),
    "file": lambda: open(__file__),  # noqa: SIM115
    "list": lambda: [1, [2], None, {"three": 3}],
}


def apps(make: Callable[[], Any], url: str = "amqp://localhost", queue: str = "orders") -> dict[str, retryrmq.App]:
    """An app for each sort of handler."""

    def sync(msg: retryrmq.Message) -> Any:
        return make()

    async def coroutine(msg: retryrmq.Message) -> Any:
        return make()

    async def later(msg: retryrmq.Message) -> Any:
        await asyncio.sleep(0)
        return make()

    made = {}
    for handler in (sync, coroutine, later):
        app = made[handler.__name__] = retryrmq.App(url)
        app.consume(f"{queue}.{handler.__name__}" if url != "amqp://localhost" else queue, **PARKS)(handler)
    return made


def simulated(app: retryrmq.App) -> tuple[str, BaseException | None]:
    (attempt,) = simulate_blocking(app, "orders", [b""]).attempts
    return attempt.became, attempt.error


@pytest.mark.parametrize("what", UNDONE)
def test_work_that_nobody_would_do_is_a_failed_attempt(what: str) -> None:
    make, says = UNDONE[what]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # also "was never awaited"
        for name, app in apps(make).items():
            became, error = simulated(app)
            assert (became, type(error)) == ("parked", TypeError), name
            with pytest.raises(TypeError, match=says):
                raise error or AssertionError


@pytest.mark.parametrize("what", UNDONE_ON_LOOPS)
def test_work_that_nobody_waits_for_is_a_failed_attempt(what: str) -> None:
    make, says = UNDONE_ON_LOOPS[what]
    for name, app in apps(make).items():
        became, error = simulated(app)
        assert (became, type(error)) == ("parked", TypeError), name
        with pytest.raises(TypeError, match=says):
            raise error or AssertionError


def test_what_to_write_is_told() -> None:
    for name, app in apps(inner).items():
        _, error = simulated(app)
        wanted = "write `async def`" if name == "sync" else "write `return await inner(…)`"
        assert wanted in str(error)


def test_a_coroutine_that_returns_another_one_is_told() -> None:
    async def handle(msg: retryrmq.Message) -> Any:
        return await outer()

    app = retryrmq.App("amqp://localhost")
    app.consume("orders", **PARKS)(handle)
    became, error = simulated(app)
    assert (became, type(error)) == ("parked", TypeError)


@pytest.mark.parametrize("what", FINE)
def test_anything_else_does_not_matter(what: str) -> None:
    for name, app in apps(FINE[what]).items():
        assert simulated(app) == ("acked", None), name


def test_a_future_that_is_done_is_what_it_came_to() -> None:
    for name, app in apps(done).items():
        assert simulated(app) == ("acked", None), name
    for name, app in apps(broken).items():
        became, error = simulated(app)
        assert (became, type(error)) == ("parked", KeyError), name


def test_settling_by_hand_may_be_returned() -> None:
    def sync(msg: retryrmq.Message) -> Any:
        return msg.ack()

    async def coroutine(msg: retryrmq.Message) -> Any:
        return msg.ack()

    for handler in (sync, coroutine):
        app = retryrmq.App("amqp://localhost")
        app.consume("orders", **PARKS)(handler)
        assert simulated(app) == ("acked", None)


@pytest.mark.parametrize(
    "signal", [retryrmq.Park("no such customer"), retryrmq.RetryAfter("30s"), retryrmq.Defer("5s")]
)
def test_a_signal_that_is_returned_counts_as_raised(signal: Exception) -> None:
    became = {retryrmq.Park: "parked", retryrmq.RetryAfter: "parked", retryrmq.Defer: "deferred"}[type(signal)]
    for name, app in apps(lambda: signal).items():
        app._plans[0] = retryrmq.options.plan("orders", app._plans[0].handler, {**PARKS, "defer_limit": 1})  # type: ignore[typeddict-item]
        first = simulate_blocking(app, "orders", [b""]).attempts[0]
        assert (first.became, first.error) == (became, signal), name


@pytest.mark.parametrize("how", ["sync", "coroutine", "later"])
def test_the_consumer_agrees_with_the_simulation(broker: Broker, how: str) -> None:
    queue = broker.queue()
    cases = {**UNDONE, **({} if how == "sync" else UNDONE_ON_LOOPS)}
    wanted = {name: says for name, (_, says) in cases.items()}
    turn: list[Callable[[], Any]] = []
    app = apps(lambda: turn[0](), broker.url, queue)[how]
    work = f"{queue}.{how}"

    async def main() -> dict[str, tuple[str, str]]:
        found = {}
        async with app:
            for number, (name, (make, _)) in enumerate(cases.items()):
                turn[:] = [make]
                await app.publish(work, name)
                await soon(f"{name} is parked", lambda: app.stats()[work].parked == number + 1)  # noqa: B023
            for number, (name, make) in enumerate(FINE.items()):
                turn[:] = [make]
                await app.publish(work, name)
                await soon(f"{name} is handled", lambda: app.stats()[work].acked == number + 1)  # noqa: B023
            async with app.parked(work) as parked:
                async for it in parked:
                    found[it.message.text()] = (it.error_type, it.error)
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = asyncio.run(main())
    assert found.keys() == wanted.keys()
    for name, (kind, text) in found.items():
        assert kind == "TypeError", name
        with pytest.raises(TypeError, match=wanted[name]):
            raise TypeError(text)
