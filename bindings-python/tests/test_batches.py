"""Handlers that get several messages at once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import retryrmq
from conftest import Broker, eventually, soon
from retryrmq import CallNext, Message
from retryrmq.testing import simulate_blocking

#: Complete batches alone, because an incomplete one waits for longer than the tests do.
FULL: Any = {"dlx": True, "batch_wait": "60s"}
#: Both kinds of handlers.
KINDS = pytest.mark.parametrize("kind", ["async", "threads"])


def of_kind(kind: str, handler: Callable[[list[Message]], Any]) -> Callable[[list[Message]], Any]:
    """The same function as an ``async def``, or as it is."""
    if kind == "threads":
        return handler

    async def on_loop(messages: list[Message]) -> Any:
        return handler(messages)

    return on_loop


def run(
    broker: Broker, queue: str, bodies: list[str], handler: Any, done: Callable[[retryrmq.Stats], bool], **options: Any
) -> retryrmq.Stats:
    """Publishes, then handles until ``done``."""

    async def main() -> retryrmq.Stats:
        async with retryrmq.connect(broker.url) as client:
            async with client.consume(queue, dlx=True):  # makes the queue
                pass
            for body in bodies:
                await client.publish(queue, body, message_id=f"m-{body}")
            async with client.consume(queue, handler, **options) as consumer:
                await soon("it is done", lambda: done(consumer.stats()))
                return consumer.stats()

    return asyncio.run(main())


@KINDS
def test_all_succeed(broker: Broker, kind: str) -> None:
    queue = broker.queue()
    seen: list[list[str]] = []

    def handle(messages: list[Message]) -> None:
        assert type(messages) is list
        seen.append([msg.text() for msg in messages])
        messages.clear()  # it is the handler's own list

    bodies = [str(number) for number in range(9)]
    stats = run(broker, queue, bodies, of_kind(kind, handle), lambda it: it.acked == 9, batch=3, concurrency=1, **FULL)
    assert seen == [["0", "1", "2"], ["3", "4", "5"], ["6", "7", "8"]]
    assert (stats.retried, stats.parked) == (0, 0)


@KINDS
def test_an_error_fails_all_and_each_has_its_own_attempts(broker: Broker, kind: str) -> None:
    queue = broker.queue()
    seen: list[list[tuple[str, int]]] = []

    def handle(messages: list[Message]) -> None:
        seen.append(sorted((msg.text(), msg.attempt) for msg in messages))
        raise ConnectionError("the database is restarting")

    stats = run(
        broker,
        queue,
        ["0", "1"],
        of_kind(kind, handle),
        lambda it: it.parked == 2,
        batch=2,
        retry="fixed(50ms, retries=1)",
        **FULL,
    )
    assert seen == [[("0", 1), ("1", 1)], [("0", 2), ("1", 2)]]
    assert stats.retried == 2
    with retryrmq.connect_blocking(broker.url) as client, client.parked(queue) as parked:
        for record in parked:
            assert (record.error_type, record.error, record.attempts) == (
                "ConnectionError",
                "the database is restarting",
                2,
            )
            parked.drop(record)


@KINDS
def test_each_message_has_its_own_answer(broker: Broker, kind: str) -> None:
    queue = broker.queue()

    def answer(msg: Message) -> object:
        return {
            "fine": None,
            "number": 7,
            "fails": ConnectionError("no") if msg.attempt == 1 else None,
            "fatal": KeyError("customer"),
            "parks": retryrmq.Park("by hand"),
            "reads": retryrmq.Undecodable("no schema 7"),
            "class": KeyError,
        }[msg.text()]

    bodies = ["fine", "number", "fails", "fatal", "parks", "reads", "class"]
    stats = run(
        broker,
        queue,
        bodies,
        of_kind(kind, lambda messages: [answer(msg) for msg in messages]),
        lambda it: it.acked == 3 and it.parked == 4,
        batch=7,
        batch_wait="100ms",
        dlx=True,
        retry="fixed(50ms, retries=1)",
        fatal=KeyError,
    )
    assert stats.retried == 1
    with retryrmq.connect_blocking(broker.url) as client, client.parked(queue) as parked:
        reasons = {record.message.text(): record.reason for record in parked}
    assert reasons == {"fatal": "fatal", "parks": "requested", "reads": "undecodable", "class": "fatal"}


@KINDS
def test_a_wrong_number_of_answers_fails_all(broker: Broker, kind: str) -> None:
    queue = broker.queue()
    handler = of_kind(kind, lambda messages: [None])
    run(
        broker,
        queue,
        ["0", "1", "2"],
        handler,
        lambda it: it.parked == 3,
        batch=3,
        retry="fixed(50ms, retries=0)",
        **FULL,
    )
    with retryrmq.connect_blocking(broker.url) as client, client.parked(queue) as parked:
        for record in parked:
            assert record.error_type == "BatchAnswerError"
            assert record.error == "the handler answered 1 of 3 messages; return one answer for each, in their order"
            parked.drop(record)


@KINDS
def test_unfinished_work_fails(broker: Broker, kind: str) -> None:
    queue = broker.queue()

    async def work() -> None: ...

    handler = of_kind(kind, lambda messages: [work() if msg.text() == "0" else None for msg in messages])
    stats = run(
        broker,
        queue,
        ["0", "1"],
        handler,
        lambda it: it.parked + it.acked == 2,
        batch=2,
        retry="fixed(50ms, retries=0)",
        **FULL,
    )
    assert (stats.parked, stats.acked) == (1, 1)


@KINDS
def test_a_timeout_fails_all(broker: Broker, kind: str) -> None:
    queue = broker.queue()
    go_on = threading.Event()

    async def on_loop(messages: list[Message]) -> None:
        messages[0].park("by hand")
        await asyncio.sleep(3600)

    def on_thread(messages: list[Message]) -> list[None]:
        messages[0].park("by hand")
        go_on.wait(60)
        return [None] * len(messages)

    handler: Any = on_loop if kind == "async" else on_thread
    try:
        run(
            broker,
            queue,
            ["0", "1", "2"],
            handler,
            lambda it: it.parked == 3,
            batch=3,
            handler_timeout="2s",  # the handler must begin within it, on a busy machine as well
            retry="fixed(50ms, retries=0)",
            **FULL,
        )
    finally:
        go_on.set()
    with retryrmq.connect_blocking(broker.url) as client, client.parked(queue) as parked:
        errors = {record.message.text(): record.error for record in parked}
    assert errors == {
        "0": "by hand",
        "1": "the handler took longer than 2s",
        "2": "the handler took longer than 2s",
    }


def test_an_event_loop_that_is_blocked_does_not_keep_a_batch(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    queue = broker.queue()
    blocked = threading.Event()

    async def handle(messages: list[Message]) -> None:
        if messages[0].attempt == 1:
            blocked.wait(60)

    def release() -> None:
        eventually("the timeout is logged", lambda: "the event loop was blocked" in caplog.text)
        blocked.set()

    thread = threading.Thread(target=release)
    thread.start()
    options: Any = {"batch": 2, "handler_timeout": "1s", "retry": "fixed(50ms, retries=9)", **FULL}
    run(broker, queue, ["0", "1"], handle, lambda it: it.acked == 2, **options)
    thread.join()
    (record,) = [it for it in caplog.records if "was blocked" in it.getMessage()]
    assert "a batch of 2 messages" in record.getMessage()
    assert vars(record)["queue"] == queue and "message_id" not in vars(record)


@KINDS
def test_a_drain_waits_for_the_handler_and_gives_an_incomplete_batch_back(broker: Broker, kind: str) -> None:
    queue = broker.queue()
    began, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    async def on_loop(messages: list[Message]) -> None:
        began.set()
        await asyncio.to_thread(go_on.wait, 60)
        seen.extend(msg.text() for msg in messages)

    def on_thread(messages: list[Message]) -> None:
        began.set()
        go_on.wait(60)
        seen.extend(msg.text() for msg in messages)

    async def main() -> None:
        handler: Any = on_loop if kind == "async" else on_thread
        async with retryrmq.connect(broker.url) as client:
            async with client.consume(queue, handler, batch=2, concurrency=1, **FULL) as consumer:
                for body in ("0", "1", "2"):
                    await client.publish(queue, body)
                await soon("the first batch has begun", began.is_set)
                closing = asyncio.ensure_future(consumer.close())
                await soon("it is closing", lambda: consumer._opened().is_closing)
                go_on.set()
                await closing
                assert consumer.stats().acked == 2
            assert sorted(seen) == ["0", "1"]
            async with client.consume(queue, dlx=True) as rest:
                msg = await anext(aiter(rest))
                assert (msg.text(), msg.attempt) == ("2", 1)
                await msg.ack()

    asyncio.run(main())


@KINDS
def test_batches_run_beside_each_other(broker: Broker, kind: str) -> None:
    queue = broker.queue()
    inside, both = [0], threading.Event()

    async def on_loop(messages: list[Message]) -> None:
        inside[0] += 1
        if inside[0] == 2:
            both.set()
        await asyncio.to_thread(both.wait, 60)

    barrier = threading.Barrier(2, timeout=60)

    def on_thread(messages: list[Message]) -> None:
        barrier.wait()

    handler: Any = on_loop if kind == "async" else on_thread
    run(broker, queue, ["0", "1", "2", "3"], handler, lambda it: it.acked == 4, batch=2, concurrency=2, **FULL)


def test_an_incomplete_batch_comes_after_batch_wait(broker: Broker) -> None:
    queue = broker.queue()
    sizes: list[int] = []
    run(
        broker,
        queue,
        ["0", "1"],
        lambda messages: sizes.append(len(messages)),
        lambda it: it.acked == 2,
        batch=100,
        batch_wait="50ms",
        dlx=True,
    )
    assert sum(sizes) == 2


def test_middleware_of_a_batch_gets_the_list(broker: Broker) -> None:
    queue = broker.queue()
    seen: list[Any] = []

    async def single(msg: Message, call_next: CallNext) -> Any:
        raise AssertionError("middleware of the client, which expects a message")

    async def loses(messages: list[Message], call_next: retryrmq.BatchCallNext) -> None:
        seen.append(len(messages))
        seen.append(await call_next(messages))

    def loses_here(messages: list[Message], call_next: retryrmq.BatchCallNext) -> None:
        raise AssertionError("there is no `def` handler")

    async def handle(messages: list[Message]) -> list[Exception | None]:
        return [None, retryrmq.Park("no")]

    async def main() -> None:
        outer = [single, retryrmq.DualMiddleware(loses, loses_here, batches=True)]
        async with (
            retryrmq.connect(broker.url, middleware=outer) as client,
            client.consume(queue, handle, batch=2, middleware=[loses], **FULL) as consumer,
        ):
            for body in ("0", "1"):
                await client.publish(queue, body)
            await soon("both have ended", lambda: (consumer.stats().acked, consumer.stats().parked) == (1, 1))

    asyncio.run(main())
    assert seen[:2] == [2, 2] and seen[3] is None
    assert type(seen[2]) is list, "answers that a middleware drops still count"


def of_one(msg: Message) -> None: ...
def of_bodies(orders: list[int]) -> None: ...
def of_two(messages: list[Message], other: int) -> None: ...
def of_messages(messages: list[Message]) -> None: ...
def of_any(messages: list[Any]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "options", "said"),
    [
        (of_one, {"batch": 2}, r"annotate `msg` as `list\[retryrmq.Message\]`"),
        (of_bodies, {"batch": 2}, r"annotate `orders` as `list\[retryrmq.Message\]`"),
        (of_two, {"batch": 2}, "is called with a list of messages and nothing else"),
        (of_messages, {"batch": 2, "invalid_body": "retry"}, "with `batch` a handler gets messages"),
        (of_messages, {"batch": 0}, "`batch` must be between 1 and 10000"),
        (of_messages, {"batch": True}, "`batch` must be an int"),
        (of_messages, {"batch": 100, "prefetch": 99}, "`prefetch` .99. must be at least `batch`"),
        (of_any, {"batch_wait": "1s"}, "`batch_wait` needs `batch`"),
    ],
)
def test_what_cannot_work_is_refused(handler: Any, options: Any, said: str) -> None:
    with pytest.raises(retryrmq.RetryRmqError, match=said):
        retryrmq.App().consume("orders", **options)(handler)


def test_iterating_has_no_batches() -> None:
    async def main() -> None:
        client = retryrmq.Client(object())  # type: ignore[arg-type]
        with pytest.raises(retryrmq.InvalidOptionError, match="`batch` needs a handler"):
            client.consume("orders", batch=2)

    asyncio.run(main())


@KINDS
def test_a_simulation_hands_over_one_message_at_a_time(kind: str) -> None:
    app = retryrmq.App()
    handler = of_kind(kind, lambda messages: [ValueError("no") if messages[0].text() == "bad" else None])
    app.consume("orders", dlx=True, batch=100, retry="fixed(1s, retries=1)")(handler)
    result = simulate_blocking(app, "orders", ["good", "bad"])
    assert [end.became for end in result.ends] == ["acked", "parked"]
    assert len(result.attempts_of(1)) == 2


@KINDS
def test_a_stop_gives_back_what_a_batch_holds(broker: Broker, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    queue = broker.queue()
    began, go_on = threading.Event(), threading.Event()

    async def on_loop(messages: list[Message]) -> None:
        began.set()
        await asyncio.sleep(3600)

    def on_thread(messages: list[Message]) -> None:
        began.set()
        go_on.wait(60)

    async def main() -> None:
        handler: Any = on_loop if kind == "async" else on_thread
        async with retryrmq.connect(broker.url) as client:
            consumer = client.consume(queue, handler, batch=2, **FULL)
            await consumer.start()
            for body in ("0", "1"):
                await client.publish(queue, body)
            await soon("it has begun", began.is_set)
            consumer.stop()
            await consumer.wait_closed()
            go_on.set()
            async with client.consume(queue, dlx=True) as rest:
                messages = aiter(rest)
                again = [await anext(messages) for _ in range(2)]
                assert sorted(msg.text() for msg in again) == ["0", "1"]
                for msg in again:
                    await msg.ack()

    caplog.set_level(logging.DEBUG, "retryrmq")
    asyncio.run(main())


def ends_of(handler: Any, *middleware: Any) -> list[tuple[str, str | None]]:
    """How a batch of one message ends, and its error."""
    app = retryrmq.App()
    app.consume("orders", dlx=True, batch=2, middleware=middleware, retry="fixed(1s, retries=0)")(handler)
    result = simulate_blocking(app, "orders", ["1"])
    return [(it.became, None if it.error is None else str(it.error)) for it in result.attempts]


@KINDS
@pytest.mark.parametrize("returned", [True, 7, "fine", {"1": 7}])
def test_what_a_middleware_returns_besides_answers_hides_no_failure(kind: str, returned: object) -> None:
    async def on_loop(messages: list[Message], call_next: retryrmq.BatchCallNext) -> Any:
        await call_next(messages)
        return returned

    def on_thread(messages: list[Message], call_next: retryrmq.BatchCallNext) -> Any:
        call_next(messages)
        return returned

    handler = of_kind(kind, lambda messages: [ValueError("no")])
    assert ends_of(handler, on_loop if kind == "async" else on_thread) == [("parked", "no")]


@KINDS
@pytest.mark.parametrize(
    "answers",
    [True, 0, "fine", {"1": None}, {"1": None}.values(), {None}, deque([ValueError("no")]), iter([None]), object()],
)
def test_answers_that_are_no_list_fail_all(kind: str, answers: Any) -> None:
    said = f"the handler answered with the type {type(answers).__name__}; return `None`, or a list with one answer for each message"
    assert ends_of(of_kind(kind, lambda messages: answers)) == [("parked", said)]


CHANGES = pytest.mark.parametrize("change", [list.reverse, list.clear, lambda it: it.__setitem__(0, it[1])])


@KINDS
@CHANGES
def test_answers_for_a_list_that_was_changed_fail_all(
    broker: Broker, kind: str, change: Callable[[list[Message]], None]
) -> None:
    queue = broker.queue()

    def handle(messages: list[Message]) -> list[None]:
        change(messages)
        return [None] * len(messages)

    options: Any = {"batch": 2, "retry": "fixed(50ms, retries=0)", **FULL}
    run(broker, queue, ["0", "1"], of_kind(kind, handle), lambda it: it.parked == 2, **options)
    with retryrmq.connect_blocking(broker.url) as client, client.parked(queue) as parked:
        for record in parked:
            assert record.error_type == "BatchAnswerError" and "changed the list of messages" in record.error
            parked.drop(record)


@KINDS
@pytest.mark.parametrize(
    ("pass_on", "said"),
    [
        (lambda it: list(it), "not a copy of it, or another list"),
        (lambda it: it[:1], "not a copy of it, or another list"),
        (lambda it: it.reverse() or it, "leave the list as it is"),
        (lambda it: it.pop() and it, "leave the list as it is"),
    ],
)
def test_call_next_takes_the_very_list(
    broker: Broker, kind: str, pass_on: Callable[[list[Message]], list[Message]], said: str
) -> None:
    queue = broker.queue()
    seen: list[str] = []

    async def on_loop(messages: list[Message], call_next: retryrmq.BatchCallNext) -> None:
        with pytest.raises(TypeError) as caught:
            await call_next(pass_on(messages))
        seen.append(str(caught.value))

    def on_thread(messages: list[Message], call_next: retryrmq.BatchCallNext) -> None:
        with pytest.raises(TypeError) as caught:
            call_next(pass_on(messages))
        seen.append(str(caught.value))

    def handle(messages: list[Message]) -> None:
        raise AssertionError("it is not called")

    middleware = [on_loop if kind == "async" else on_thread]
    options: Any = {"batch": 2, "middleware": middleware, **FULL}
    run(broker, queue, ["0", "1"], of_kind(kind, handle), lambda it: it.acked == 2, **options)
    assert len(seen) == 1 and said in seen[0]


@KINDS
def test_a_batch_is_passed_on_once(kind: str) -> None:
    async def on_loop(messages: list[Message], call_next: retryrmq.BatchCallNext) -> Any:
        await call_next(messages)
        return await call_next(messages)

    def on_thread(messages: list[Message], call_next: retryrmq.BatchCallNext) -> Any:
        call_next(messages)
        return call_next(messages)

    calls: list[int] = []
    ((became, said),) = ends_of(
        of_kind(kind, lambda messages: calls.append(1)), on_loop if kind == "async" else on_thread
    )
    assert became == "parked" and said is not None and "called `call_next` twice" in said and calls == [1]
