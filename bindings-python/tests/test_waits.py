"""What a wait that ends early leaves behind, and what it must not lose."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import retryrmq
from conftest import PATIENCE, Broker, eventually, soon
from proxy import Proxy
from retryrmq import _native
from retryrmq._notifications import dispatcher


def awaited() -> int:
    return len(dispatcher()._pending)


def operations() -> int:
    gc.collect()
    return _native.live_objects()["operations"]


async def begun(wait: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
    """A task that waits for an operation now."""

    async def waiting() -> Any:
        return await wait()

    before = awaited()
    task = asyncio.ensure_future(waiting())
    await soon("it waits", lambda: awaited() > before)
    return task


async def cancelled(wait: Callable[[], Awaitable[Any]]) -> None:
    task = await begun(wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def later(msg: retryrmq.Message) -> None: ...


def at_once(msg: retryrmq.Message) -> None: ...


@pytest.mark.parametrize("handler", [later, at_once, None], ids=["async", "sync", "iterated"])
def test_cancelled_waits_leave_nothing(broker: Broker, handler: Callable[..., Any] | None) -> None:
    async def main() -> None:
        async with (
            retryrmq.connect(broker.url) as client,
            client.consume(broker.queue(), handler, dlx=True) as consumer,
        ):
            wait = consumer.wait_closed if handler else lambda: anext(aiter(consumer))
            if handler is later:
                await soon("its worker waits for messages", awaited)
            before = awaited(), operations()
            for _ in range(20):
                await cancelled(wait)
            await soon("nothing is left of them", lambda: (awaited(), operations()) <= before)

    asyncio.run(main())


def test_a_cancelled_wait_that_changes_nothing_is_given_up(broker: Broker) -> None:
    async def main() -> None:
        async with retryrmq.connect(broker.url) as client, client.consume(broker.queue(), dlx=True) as consumer:
            subscription = consumer._opened()
            for operation in (subscription.ready(), subscription.wait_closed()):
                waited_for = operation
                await cancelled(lambda: dispatcher().wait_async(waited_for, only_here=True))  # noqa: B023 - it is over then
                await soon("it has ended", operation.done)
                with pytest.raises(retryrmq.ClosedError):
                    operation.result()

    asyncio.run(main())


def test_cancelled_waits_for_messages_lose_none(broker: Broker) -> None:
    queue, bodies = broker.queue(), [str(number) for number in range(60)]

    async def main() -> None:
        async with retryrmq.connect(broker.url) as client, client.consume(queue, dlx=True) as consumer:

            async def take() -> retryrmq.Message:
                return await anext(aiter(consumer))

            async def publish() -> None:
                for body in bodies:
                    await client.publish(queue, body)

            publishing = asyncio.ensure_future(publish())
            seen: list[str] = []
            tries = 0
            while len(seen) < len(bodies):
                tries += 1
                taking = asyncio.ensure_future(take())
                for _ in range(tries % 5):  # cancelled at every step it can be at
                    await asyncio.sleep(0)
                taking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    msg = await taking
                    msg.ack()
                    seen.append(msg.text())
            await publishing
            assert seen == bodies
            await soon("all are settled", lambda: consumer.stats().acked == len(bodies))

    asyncio.run(main())


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    proxy = Proxy(broker.url)
    yield proxy
    proxy.close()


def park(broker: Broker, queue: str, *bodies: str) -> None:
    arguments = {"x-queue-type": "quorum"}
    broker.api("PUT", f"/queues/%2F/{queue}.parked", {"durable": True, "arguments": arguments})
    with retryrmq.connect_blocking(broker.url) as client:
        for body in bodies:
            client.publish(f"{queue}.parked", body)


def test_a_cancelled_wait_for_a_parked_message_passes_over_none(broker: Broker, proxy: Proxy) -> None:
    queue = broker.queue()
    park(broker, queue, "a", "b")

    async def main() -> None:
        async with retryrmq.connect(proxy.url) as client:
            own = proxy.connections
            async with client.parked(queue) as parked:
                # The walk has a connection of its own. Before it takes messages, it asks whether the client can publish.
                proxy.hold_up(own)
                before = operations()
                for _ in range(5):
                    await cancelled(lambda: anext(aiter(parked)))
                assert operations() <= before + 1
                proxy.go_on()
                assert [it.message.text() async for it in parked] == ["a", "b"]

    asyncio.run(main())


def test_leaving_a_walk_ends_the_wait_for_its_next_message(broker: Broker, proxy: Proxy) -> None:
    queue = broker.queue()
    park(broker, queue, "a")

    async def main() -> None:
        async with retryrmq.connect(proxy.url) as client:
            own = proxy.connections
            with pytest.raises(KeyError):
                async with client.parked(queue) as parked:
                    proxy.hold_up(own)
                    waiting = await begun(lambda: anext(aiter(parked), None))
                    raise KeyError
            # By itself it would end with an error: nobody answers.
            assert await waiting is None
            proxy.go_on()

    asyncio.run(main())


def test_leaving_a_walk_ends_the_wait_of_a_thread(broker: Broker, proxy: Proxy) -> None:
    queue = broker.queue()
    park(broker, queue, "a")
    with retryrmq.connect_blocking(proxy.url) as client, ThreadPoolExecutor() as pool:
        own = proxy.connections
        with pytest.raises(KeyError), client.parked(queue) as parked:
            proxy.hold_up(own)
            before = operations()
            waiting = pool.submit(next, iter(parked), None)
            eventually("it waits", lambda: operations() > before)
            raise KeyError
        assert waiting.result(PATIENCE) is None
        proxy.go_on()
