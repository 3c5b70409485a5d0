"""Middleware: around attempts, and around publishes."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import retryrmq
from conftest import Broker, eventually, soon
from retryrmq import CallNext, Message, Publishing, PublishNext
from retryrmq.testing import simulate, simulate_blocking

#: Two attempts at most.
ONCE: Any = {"dlx": True, "retry": "fixed(20ms, retries=1)"}
user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on an event loop of its own."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


class Told:
    """Middleware that writes down what it sees."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_loop(self, name: str) -> retryrmq.Middleware:
        async def told(msg: Message, call_next: CallNext) -> Any:
            self.lines.append(f"{name} begins {msg.attempt}")
            try:
                result = await call_next(msg)
            except BaseException as error:
                self.lines.append(f"{name} has {type(error).__name__}")
                raise
            self.lines.append(f"{name} has {result}")
            return result

        return told

    def on_threads(self, name: str) -> retryrmq.Middleware:
        def told(msg: Message, call_next: CallNext) -> Any:
            self.lines.append(f"{name} begins {msg.attempt}")
            try:
                result = call_next(msg)
            except BaseException as error:
                self.lines.append(f"{name} has {type(error).__name__}")
                raise
            self.lines.append(f"{name} has {result}")
            return result

        return told


ORDER = [
    *(
        "app begins 1",
        "consumer begins 1",
        "inner begins 1",
        "inner has OSError",
        "consumer has OSError",
        "app has OSError",
    ),
    *("app begins 2", "consumer begins 2", "inner begins 2", "inner has 7", "consumer has 7", "app has 7"),
]


@on_a_loop
async def test_the_first_is_the_outermost_and_the_app_is_outside(broker: Broker) -> None:
    queue, told = broker.queue(), Told()
    app = retryrmq.App(broker.url, middleware=[told.on_loop("app")])

    @app.consume(queue, middleware=[told.on_loop("consumer"), told.on_loop("inner")], **ONCE)
    async def handle(msg: Message) -> int:
        if msg.attempt == 1:
            raise OSError("no")
        return 7

    async with app:
        await app.publish(queue, "7")
        await soon("it is handled", lambda: app.stats()[queue].acked == 1)
    assert told.lines == ORDER


def test_the_same_with_threads(broker: Broker) -> None:
    queue, told = broker.queue(), Told()
    with retryrmq.connect_blocking(broker.url, middleware=[told.on_threads("app")]) as client:

        def handle(msg: Message) -> int:
            if msg.attempt == 1:
                raise OSError("no")
            return 7

        middleware = [told.on_threads("consumer"), told.on_threads("inner")]
        with client.consume(queue, handle, middleware=middleware, **ONCE) as consumer:
            client.publish(queue, "7")
            eventually("it is handled", lambda: consumer.stats().acked == 1)
    assert told.lines == ORDER


def test_without_any_nothing_is_in_between() -> None:
    app = retryrmq.App()

    @app.consume("orders")
    async def handle(msg: Message) -> None: ...

    assert app._plans[0].call is handle


def plain(msg: Message, call_next: CallNext) -> Any:
    return call_next(msg)


async def awaiting(msg: Message, call_next: CallNext) -> Any:
    return await call_next(msg)


async def coroutine(msg: Message) -> None: ...
def function(msg: Message) -> None: ...


def test_one_of_the_other_kind_is_refused_and_one_of_each_is_not() -> None:
    app = retryrmq.App(middleware=[awaiting])
    app.consume("a")(coroutine)
    with pytest.raises(
        TypeError, match=r"`awaiting` is an `async def`, and the handler is a `def`; write `def awaiting\(msg, "
    ):
        app.consume("b")(function)
    with pytest.raises(
        TypeError, match=r"`plain` is a `def`, and .* write `async def plain\(.*, which awaits `call_next\(msg\)`"
    ):
        app.consume("c", middleware=[plain])(coroutine)
    both = retryrmq.App(middleware=[retryrmq.DualMiddleware(awaiting, plain)])
    both.consume("a")(coroutine)
    both.consume("b")(function)
    assert [end.became for end in simulate_blocking(both, "a", ["1"]).ends] == ["acked"]
    assert [end.became for end in simulate_blocking(both, "b", ["1"]).ends] == ["acked"]
    with pytest.raises(TypeError, match="a blocking client needs a `def`"):
        retryrmq.connect_blocking("amqp://127.0.0.1:1", middleware=[awaiting])
    with pytest.raises(TypeError, match="`asynchronous` must be an `async def`"):
        retryrmq.DualMiddleware(plain, plain)


def generating(msg: Message, call_next: CallNext) -> Any:
    yield


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (plain, "must be a list of functions, not function"),
        ([function], "`function` is called with the message and `call_next`|too many positional"),
        ([generating], "has a `yield`"),
        (["plain"], "must be callable"),
    ],
)
def test_what_cannot_work_is_refused(wrong: Any, said: str) -> None:
    for refuses in (
        lambda: retryrmq.App(middleware=wrong),
        lambda: retryrmq.App(publish_middleware=wrong),
        lambda: retryrmq.App().consume("orders", middleware=wrong),
    ):
        with pytest.raises(retryrmq.InvalidTypeError, match=said):
            refuses()


async def outcome_of(middleware: Any, handler: Callable[[Message], Any] = coroutine) -> Any:
    app = retryrmq.App()
    app.consume("orders", dlx=True, retry="fixed(1s, retries=0)", middleware=[middleware])(handler)
    result = await simulate(app, "orders", ["7"])
    return result.ends[0].reason or result.ends[0].became, result.attempts[0].error


@on_a_loop
async def test_what_it_returns_or_raises_is_the_end_of_the_attempt() -> None:
    async def skips(msg: Message, call_next: CallNext) -> None: ...

    async def fails(msg: Message) -> None:
        raise OSError("the partner is closed for good")

    async def parks(msg: Message, call_next: CallNext) -> Any:
        try:
            await call_next(msg)
        except OSError as error:
            raise retryrmq.Park("closed") from error

    async def forgives(msg: Message, call_next: CallNext) -> Any:
        try:
            await call_next(msg)
        except OSError:
            return None

    async def returns_park(msg: Message) -> Any:
        return retryrmq.Park("returned")

    assert await outcome_of(skips, fails) == ("acked", None)
    assert await outcome_of(forgives, fails) == ("acked", None)
    assert (await outcome_of(parks, fails))[0] == "requested"
    told = Told()
    assert (await outcome_of(told.on_loop("it"), returns_park))[0] == "requested"
    assert told.lines == ["it begins 1", "it has Park"], "a returned signal is raised where the middleware sees it"


@on_a_loop
async def test_mistakes_that_would_skip_the_handler_are_failed_attempts() -> None:
    async def forgets(msg: Message, call_next: CallNext) -> None:
        call_next(msg)

    async def returns(msg: Message, call_next: CallNext) -> Any:
        return call_next(msg)

    async def replaces(msg: Message, call_next: CallNext) -> Any:
        return await call_next("another")  # type: ignore[arg-type]

    async def waits_for(msg: Message, call_next: CallNext) -> Any:
        return await asyncio.wait_for(call_next(msg), 60)

    for middleware, said in (
        (
            forgets,
            "the middleware `forgets` called `call_next(…)` and did not await it, so nothing was done; write `await call_next(…)`",
        ),
        (
            returns,
            "the middleware `returns` returned the coroutine `call_next`, which nobody awaits; write `return await call_next(…)`",
        ),
        (replaces, "`call_next` takes the Message that the middleware `replaces` was called with, not str"),
    ):
        became, error = await outcome_of(middleware)
        assert (became, type(error), str(error)) == ("exhausted", TypeError, said)
    assert await outcome_of(waits_for) == ("acked", None)


@on_a_loop
async def test_a_call_that_the_handler_forgets_fails_where_middleware_sees_it() -> None:
    app = retryrmq.App()

    async def forgets(msg: Message) -> None:
        app.publish("orders", "8")  # type: ignore[unused-coroutine]

    told = Told()
    assert (await outcome_of(told.on_loop("it"), forgets))[0] == "exhausted"
    assert told.lines == ["it begins 1", "it has TypeError"]


@on_a_loop
async def test_it_shares_the_context_of_the_handler(broker: Broker) -> None:
    queue = broker.queue()
    seen: list[str] = []

    async def named(msg: Message, call_next: CallNext) -> Any:
        seen.append(user.get())
        user.set(msg.text())
        return await call_next(msg)

    def named_here(msg: Message, call_next: CallNext) -> Any:
        seen.append(user.get())
        user.set(msg.text())
        return call_next(msg)

    async def handle(msg: Message) -> None:
        seen.append(user.get())

    def handle_here(msg: Message) -> None:
        seen.append(user.get())

    async with retryrmq.connect(broker.url, middleware=[retryrmq.DualMiddleware(named, named_here)]) as client:
        for number, handler in enumerate((handle, handle_here)):
            async with client.consume(f"{queue}.{number}", handler, concurrency=1, **ONCE) as consumer:
                for body in ("maria", "jan"):
                    await client.publish(consumer.queue, body)
                await soon("both are handled", lambda consumer=consumer: consumer.stats().acked == 2)
    assert seen == ["nobody", "maria", "nobody", "jan"] * 2


@on_a_loop
async def test_it_runs_within_the_handler_timeout(broker: Broker) -> None:
    queue = broker.queue()
    ended: list[str] = []
    go_on = threading.Event()

    async def slow(msg: Message, call_next: CallNext) -> Any:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("cancelled")

    def stuck(msg: Message, call_next: CallNext) -> Any:
        go_on.wait(60)

    async with retryrmq.connect(broker.url) as client:
        for handler, middleware in ((coroutine, slow), (function, stuck)):
            options: Any = {
                "middleware": [middleware],
                "handler_timeout": "1s",  # the middleware must begin within it, on a busy machine as well
                "dlx": True,
                "retry": "fixed(1s, retries=0)",
            }
            async with client.consume(f"{queue}.{handler.__name__}", handler, **options) as consumer:
                await client.publish(consumer.queue, "7")
                await soon("it is parked", lambda consumer=consumer: consumer.stats().parked == 1)
                if handler is function:
                    go_on.set()
    assert ended == ["cancelled"]


def test_iterating_has_no_middleware() -> None:
    async def main() -> None:
        client = retryrmq.Client(object())  # type: ignore[arg-type]
        with pytest.raises(retryrmq.InvalidOptionError, match="`middleware` needs a handler"):
            client.consume("orders", middleware=[plain])

    asyncio.run(main())


# Around publishes.


async def stamped(publish: Publishing, call_next: PublishNext) -> None:
    publish.headers["x-request"] = "r-1"
    publish.properties.setdefault("correlation_id", f"for {publish.queue or publish.exchange}")
    await call_next(publish)


def stamped_here(publish: Publishing, call_next: PublishNext) -> None:
    publish.headers["x-request"] = "r-1"
    publish.properties.setdefault("correlation_id", f"for {publish.queue or publish.exchange}")
    call_next(publish)


@on_a_loop
async def test_a_publish_gets_headers_and_properties(broker: Broker) -> None:
    queue = broker.queue()
    given = {"own": 1}
    stamp = retryrmq.DualMiddleware(stamped, stamped_here)
    async with (
        retryrmq.connect(broker.url, publish_middleware=[stamp]) as client,
        client.consume(queue, dlx=True) as consumer,
    ):
        await client.publish(queue, "1", headers=given, message_id="one", expiration="1h", priority=3)
        await asyncio.to_thread(client.blocking.publish, queue, "2", correlation_id="own")
        seen = [await anext(messages) for messages in [aiter(consumer)] for _ in range(2)]
        assert [msg.text() for msg in seen] == ["1", "2"]
        assert [msg.headers["x-request"] for msg in seen] == ["r-1", "r-1"]
        assert [msg.properties["correlation_id"] for msg in seen] == [f"for {queue}", "own"]
        assert (seen[0].message_id, seen[0].properties["priority"], seen[0].headers["own"]) == ("one", 3, 1)
        for msg in seen:
            await msg.ack()
    assert given == {"own": 1}, "the caller's headers are not changed"


@on_a_loop
async def test_publish_middleware_sees_the_confirm_and_may_skip_it(broker: Broker) -> None:
    queue = broker.queue()
    seen: list[str] = []

    async def outer(publish: Publishing, call_next: PublishNext) -> None:
        seen.append(f"{publish.exchange}|{publish.routing_key}|{publish.body!r}|{publish.delay}")
        try:
            await call_next(publish)
        except retryrmq.UnroutableError as error:
            seen.append(type(error).__name__)
            raise

    async def inner(publish: Publishing, call_next: PublishNext) -> None:
        if publish.body != b"skipped":
            await call_next(publish)

    async def unawaited(publish: Publishing, call_next: PublishNext) -> None:
        call_next(publish)

    async def wrong(publish: Publishing, call_next: PublishNext) -> None:
        publish.properties["delay"] = "1s"
        await call_next(publish)

    async with retryrmq.connect(broker.url, publish_middleware=[outer, inner]) as client:
        with pytest.raises(retryrmq.UnroutableError):
            await client.publish(queue, "7")
        await client.publish(queue, "skipped", exchange="amq.direct")
        with pytest.raises(
            retryrmq.InvalidTypeError, match=r"`outer` is an `async def`, and a blocking client needs a `def`"
        ):
            client.blocking.publish(queue, "7")
    assert seen == [f"|{queue}|b'7'|None", "UnroutableError", f"amq.direct|{queue}|b'skipped'|None"]
    async with retryrmq.connect(broker.url, publish_middleware=[unawaited]) as client:
        with pytest.raises(TypeError, match=r"`unawaited` called `call_next\(…\)` and did not await it"):
            await client.publish(queue, "7")
    async with retryrmq.connect(broker.url, publish_middleware=[wrong]) as client:
        with pytest.raises(retryrmq.InvalidTypeError, match="there is no option `delay`"):
            await client.publish(queue, "7")


def test_a_simulated_app_has_its_publish_middleware() -> None:
    app = retryrmq.App(publish_middleware=[retryrmq.DualMiddleware(stamped, stamped_here)])

    @app.consume("orders")
    async def handle(msg: Message) -> None:
        await app.publish("mails", "1")

    @app.consume("mails")
    def send(msg: Message) -> None:
        app.blocking.publish("done", "2")

    for queue in ("orders", "mails"):
        (published,) = simulate_blocking(app, queue, ["7"]).published
        assert published.message.headers["x-request"] == "r-1"


def test_a_parked_message_has_the_trace_of_the_handler(broker: Broker) -> None:
    queue = broker.queue()

    def fails(msg: Message) -> None:
        raise OSError("no")

    with retryrmq.connect_blocking(broker.url) as client:
        with client.consume(queue, fails, dlx=True, retry="fixed(1s, retries=0)", middleware=[plain]) as consumer:
            client.publish(queue, "7")
            eventually("it is parked", lambda: consumer.stats().parked == 1)
        with client.parked(queue) as parked:
            (record,) = parked
            assert record.error_type == "OSError"
            assert record.stack is not None and "in fails" in record.stack and "in plain" in record.stack
            parked.drop(record)


def test_time_is_the_handlers() -> None:
    """A middleware measures what it surrounds."""
    took: list[float] = []

    def measured(msg: Message, call_next: CallNext) -> Any:
        began = time.perf_counter()
        try:
            return call_next(msg)
        finally:
            took.append(time.perf_counter() - began)

    app = retryrmq.App(middleware=[measured])
    app.consume("orders")(function)
    simulate_blocking(app, "orders", ["1", "2"])
    assert len(took) == 2


NO_RETRY: Any = {"dlx": True, "retry": "fixed(1s, retries=0)"}


def ends_of(handler: Any, *middleware: Any, **options: Any) -> list[tuple[str, str | None]]:
    """How one attempt ends, and its error."""
    app = retryrmq.App()
    app.consume("orders", middleware=middleware, **{**NO_RETRY, **options})(handler)
    result = simulate_blocking(app, "orders", ["1"])
    return [(it.became, None if it.error is None else str(it.error)) for it in result.attempts]


def test_a_call_that_is_not_done_fails_the_attempt() -> None:
    async def begins(msg: Any, call_next: CallNext) -> None:
        task = asyncio.ensure_future(call_next(msg))
        await asyncio.wait([task], timeout=0.01)
        running.append(task)

    async def schedules(msg: Any, call_next: CallNext) -> None:
        running.append(asyncio.ensure_future(call_next(msg)))

    async def handle(msg: Any) -> None:
        began.append(msg)
        await asyncio.sleep(3600)

    for middleware, batch, begins_at in ((begins, {}, 1), (begins, {"batch": 2}, 1), (schedules, {}, 0)):
        running: list[asyncio.Future[None]] = []
        began: list[Any] = []
        name = middleware.__name__
        said = f"the middleware `{name}` returned before `call_next(…)` was done; write `await call_next(…)`"
        assert ends_of(handle, middleware, **batch) == [("parked", said)]
        assert len(began) == begins_at


def test_a_call_on_a_thread_that_is_not_done_fails_the_attempt() -> None:
    began, go_on = threading.Event(), threading.Event()

    def begins(msg: Message, call_next: CallNext) -> None:
        threads.append(threading.Thread(target=call_next, args=(msg,)))
        threads[0].start()
        assert began.wait(60)

    def handle(msg: Message) -> None:
        began.set()
        go_on.wait(60)

    threads: list[threading.Thread] = []
    try:
        ends = ends_of(handle, begins)
    finally:
        go_on.set()
        threads[0].join()
    assert ends == [("parked", "the middleware `begins` returned before `call_next(…)` was done; wait for it")]


def test_an_error_that_nobody_got_fails_the_attempt() -> None:
    async def waits(msg: Message, call_next: CallNext) -> None:
        await asyncio.wait([asyncio.ensure_future(call_next(msg))])

    async def wraps(msg: Message, call_next: CallNext) -> None:
        async def call() -> None:
            await call_next(msg)

        await asyncio.wait([asyncio.ensure_future(call())])

    async def catches(msg: Message, call_next: CallNext) -> None:
        task = asyncio.ensure_future(call_next(msg))
        await asyncio.wait([task])
        with pytest.raises(OSError):
            await task

    async def looks(msg: Message, call_next: CallNext) -> None:
        task = asyncio.ensure_future(call_next(msg))
        await asyncio.wait([task])
        assert isinstance(task.exception(), OSError)

    async def handle(msg: Message) -> None:
        raise OSError("no disk")

    for middleware in (waits, wraps):
        assert ends_of(handle, middleware) == [("parked", "no disk")]
        assert ends_of(handle, awaiting, middleware) == [("parked", "no disk")]
    for middleware in (catches, looks):
        assert ends_of(handle, middleware) == [("acked", None)]


@on_a_loop
async def test_a_publish_that_is_not_done_or_has_failed_is_an_error(broker: Broker) -> None:
    queue = broker.queue()
    tasks: list[asyncio.Future[None]] = []

    async def begins(publish: Publishing, call_next: PublishNext) -> None:
        tasks.append(asyncio.ensure_future(call_next(publish)))
        await asyncio.sleep(0)

    async def waits(publish: Publishing, call_next: PublishNext) -> None:
        await asyncio.wait([asyncio.ensure_future(call_next(publish))])

    async with retryrmq.connect(broker.url, publish_middleware=[begins]) as client:
        async with client.consume(queue, dlx=True):
            pass
        with pytest.raises(RuntimeError, match=r"the middleware `begins` returned before `call_next\(…\)` was done"):
            await client.publish(queue, "1")
        await asyncio.wait(tasks)
    async with retryrmq.connect(broker.url, publish_middleware=[waits]) as client:
        with pytest.raises(retryrmq.UnroutableError):
            await client.publish(broker.queue(), "1")
        await client.publish(queue, "1")


def test_only_the_message_itself_is_passed_on() -> None:
    async def handle(msg: Any) -> None: ...

    kept: list[Any] = []

    async def passes_another(msg: Message, call_next: CallNext) -> None:
        kept.append(msg)
        await call_next(kept[0])

    app = retryrmq.App()
    app.consume("orders", middleware=[passes_another], **NO_RETRY)(handle)
    attempts = simulate_blocking(app, "orders", ["1", "2"]).attempts
    assert [attempt.became for attempt in attempts] == ["acked", "parked"]
    assert str(attempts[1].error).endswith("was called with, not another one")
