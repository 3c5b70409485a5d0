"""What happens to consumers when event loops end, and when handlers are cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import retryrmq
from conftest import PATIENCE, Broker, eventually, soon
from retryrmq._loop_workers import LoopWorkers


@pytest.mark.parametrize("how", ["idle", "busy", "iterating"])
def test_a_closed_loop_lets_go_of_its_messages(broker: Broker, how: str) -> None:
    queue = broker.queue()
    held: list[Any] = []

    async def begin() -> None:
        client = await retryrmq.connect(broker.url)
        held.append(client)
        if how == "iterating":
            plain = client.consume(queue, dlx=True, prefetch=2)
            held.append(plain)
            async for msg in plain:
                held.append(msg)
                return
        begun = []

        async def handle(msg: retryrmq.Message) -> None:
            begun.append(msg)
            await asyncio.sleep(3600)

        consumer = client.consume(queue, handle, dlx=True, concurrency=1 if how == "busy" else 16)
        held.append(await consumer.start())
        await soon("handlers have begun", lambda: len(begun) == (1 if how == "busy" else 3))

    with retryrmq.connect_blocking(broker.url) as client:
        with client.consume(queue, dlx=True):
            pass
        for body in "abc":
            client.publish(queue, body)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        loop.close()
        gc.collect()
        seen: list[str] = []
        with client.consume(queue, lambda msg: seen.append(msg.text()), dlx=True):
            client.publish(queue, "new")
            eventually("all of them come to somebody else", lambda: sorted(seen) == ["a", "b", "c", "new"])


def test_handlers_that_wait_are_given_no_messages_that_they_cannot_begin(broker: Broker) -> None:
    queue = broker.queue()

    async def main() -> None:
        begun: list[str] = []
        end = asyncio.Event()

        async def handle(msg: retryrmq.Message) -> None:
            begun.append(msg.text())
            await end.wait()

        async with retryrmq.connect(broker.url) as client:
            async with client.consume(queue, dlx=True):
                pass
            for number in range(40):
                await client.publish(queue, str(number))
            async with client.consume(queue, handle, dlx=True, concurrency=12) as consumer:
                await soon("as many have begun as may run", lambda: len(begun) == 12)
                workers = consumer._workers
                assert isinstance(workers, LoopWorkers) and not workers._unstarted
                end.set()
                await soon("all are handled", lambda: consumer.stats().acked == 40)

    asyncio.run(main())


async def sleeps() -> None:
    await asyncio.sleep(3600)


async def cleans_up() -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0)


async def swallows() -> None:
    with contextlib.suppress(BaseException):
        await asyncio.sleep(3600)


async def fails() -> None:
    try:
        await asyncio.sleep(3600)
    except BaseException as error:
        raise ValueError("while it was torn down") from error


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("options", [{}, {"handler_timeout": "10m"}], ids=["unlimited", "limited"])
@pytest.mark.parametrize("handler", [sleeps, cleans_up, swallows, fails])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_closed_under_busy_handlers_fails_no_message(
    broker: Broker, handler: Callable[[], Awaitable[None]], options: dict[str, Any], kept: bool
) -> None:
    queue = broker.queue()
    policy: dict[str, Any] = {"dlx": True, "retry": "fixed(50ms, retries=0)"}
    held: list[Any] = []

    async def begin(client: retryrmq.Client) -> None:
        began: list[str] = []

        async def handle(msg: retryrmq.Message) -> None:
            began.append(msg.text())
            await handler()

        consumer = client.consume(queue, handle, concurrency=2, prefetch=2, **policy, **options)
        await consumer.start()
        if kept:
            held.append(consumer)
        await soon("every worker is busy", lambda: len(began) == 2)

    with retryrmq.connect_blocking(broker.url) as client:
        with client.consume(queue, **policy):
            pass
        for body in "abcd":
            client.publish(queue, body)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin(retryrmq.Client(client._native)))
        loop.close()
        del loop
        gc.collect()
        seen: list[tuple[str, int, object]] = []

        def look(msg: retryrmq.Message) -> None:
            seen.append((msg.text(), msg.attempt, msg.headers.get("x-retry-crashes")))

        with client.consume(queue, look, **policy) as consumer:
            eventually("all of them come to somebody else", lambda: len(seen) == 4)
            assert sorted(seen) == [(body, 1, None) for body in "abcd"]
            eventually("they are acknowledged", lambda: consumer.stats().acked == 4)
            numbers = consumer.stats()
            assert (numbers.failed, numbers.parked) == (0, 0)
            # Whatever the closed loop held was given back, which nobody counts as a crash.
            assert numbers.requeued == numbers.delivered - 4 >= 2


def test_a_consumer_left_open_does_not_keep_its_loop_from_ending(broker: Broker) -> None:
    queue = broker.queue()
    consumers: list[retryrmq.Consumer] = []
    began: list[retryrmq.Message] = []

    async def handle(msg: retryrmq.Message) -> None:
        began.append(msg)
        await asyncio.sleep(3600)

    async def main() -> None:
        client = await retryrmq.connect(broker.url)
        consumers.append(client.consume(queue, handle, dlx=True))
        await consumers[0].start()
        await client.publish(queue, "a")
        await soon("it is handled", lambda: began)

    runner = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    runner.start()
    runner.join(PATIENCE)
    assert not runner.is_alive()
    assert consumers[0].stats().failed == 0


@pytest.mark.parametrize("how", ["await", "return"])
def test_a_handler_that_cancels_itself_ends_nothing_else(broker: Broker, how: str) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    seen: list[str] = []

    @app.consume(queue, dlx=True, retry="fixed(50ms, retries=0)", concurrency=2)
    async def handle(msg: retryrmq.Message) -> None:
        seen.append(msg.text())
        if msg.text() == "bad":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if how == "await":
                await asyncio.sleep(1)

    async def main() -> None:
        async with app:
            for _ in range(3):
                await app.publish(queue, "bad")
            await soon("they are handled", lambda: seen.count("bad") == 3)
            await app.publish(queue, "good")
            await soon("the others go on", lambda: "good" in seen)
            ended = 3 if how == "await" else 0
            await soon("its end", lambda: app.stats()[queue].parked == ended and app.stats()[queue].acked == 4 - ended)

    asyncio.run(main())


def test_a_worker_cancelled_from_outside_ends_the_service_loudly(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    tasks: list[asyncio.Task[Any] | None] = []

    @app.consume(queue, dlx=True)
    async def handle(msg: retryrmq.Message) -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(3600)

    async def main() -> None:
        serving = asyncio.ensure_future(app.serve())
        await soon("it consumes", lambda: queue in app.stats())
        await app.publish(queue, "a")
        await soon("it is handled", lambda: tasks)
        assert tasks[0] is not None
        tasks[0].cancel()
        with pytest.raises(retryrmq.ClosedError, match="cancelled from outside"):
            await asyncio.wait_for(serving, PATIENCE)

    asyncio.run(main())
    assert "cancelled from outside" in caplog.text


def test_a_time_limit_of_the_handlers_own_is_its_own_affair(broker: Broker) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)

    @app.consume(queue, dlx=True, retry="fixed(50ms, retries=1)", concurrency=1)
    async def handle(msg: retryrmq.Message) -> None:
        if msg.attempt == 1:
            await asyncio.wait_for(asyncio.sleep(3600), 0.01)

    async def main() -> None:
        async with app:
            for _ in range(3):
                await app.publish(queue, "a")
            await soon("all are handled", lambda: app.stats()[queue].acked == 3)
            assert app.stats()[queue].failed == 3

    asyncio.run(main())
