"""Retries on a connection of aio-pika."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest
import retryrmq
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustConnection
from conftest import Broker, soon
from retryrmq._crash_isolation import CrashIsolation
from retryrmq.aio_pika import RetryConsumer
from retryrmq.events import Event, Parked, PublishFailed, Retried

FAST = "fixed(200ms, retries=2)"


class Seen:
    """A handler that fails a few times, and what it saw."""

    def __init__(self, fail: int = 0, error: BaseException | None = None) -> None:
        self.runs: list[AbstractIncomingMessage] = []
        self._fail = fail
        self._error = error or ValueError("the till is closed")

    async def __call__(self, message: AbstractIncomingMessage) -> None:
        self.runs.append(message)
        if len(self.runs) <= self._fail:
            raise self._error


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[AbstractRobustConnection]:
    connection = await aio_pika.connect_robust(url)
    try:
        yield connection
    finally:
        await connection.close()


async def consume(connection: Any, retries: RetryConsumer, handle: Any, prefetch: int = 10) -> Any:
    await retries.start(connection)
    channel = await connection.channel()
    await channel.set_qos(prefetch)
    queue = await channel.get_queue(retries.queue)
    await queue.consume(retries.around(handle))
    return channel


async def count(connection: Any, queue: str) -> int:
    async with connection.channel() as channel:
        found = await channel.declare_queue(queue, passive=True)
        return int(found.declaration_result.message_count)


async def taken(connection: Any, queue: str) -> AbstractIncomingMessage:
    async with connection.channel() as channel:
        source = await channel.get_queue(queue)
        message = await soon("a message", lambda: source.get(fail=False))
        await message.ack()
        return message


def test_a_message_that_fails_comes_back_with_all_it_had(every_broker: Broker) -> None:
    queue = every_broker.queue()
    events: list[Event] = []

    async def main() -> None:
        seen = Seen(fail=1)
        async with connected(every_broker.url) as connection:
            channel = await consume(
                connection, RetryConsumer(queue, dlx=True, retry=FAST, on_event=events.append), seen
            )
            exchange = await channel.declare_exchange(queue, "topic", auto_delete=True)
            await (await channel.get_queue(queue)).bind(exchange, "eu.#")
            sent = aio_pika.Message(
                b"7",
                headers={"n": 5, "t": "x"},
                priority=3,
                reply_to="answers",
                expiration=60,
                user_id="guest",
                type="order",
            )
            await exchange.publish(sent, "eu.de")
            await soon("the second attempt", lambda: len(seen.runs) == 2 and events)
        first, second = seen.runs
        kept = ("body", "priority", "reply_to", "message_id", "type", "correlation_id", "content_type")
        assert [getattr(second, name) for name in kept] == [getattr(first, name) for name in kept]
        assert (second.expiration, second.user_id) == (None, None)
        record = {"n": 5, "t": "x", "x-retry-count": 1, "x-retry-exchange": queue, "x-retry-routing-key": "eu.de"}
        assert second.headers.items() >= {**record, "x-retry-expiration": "60000", "x-retry-user-id": "guest"}.items()
        assert [type(event) for event in events] == [Retried]

    asyncio.run(main())


async def is_marked(connection: Any, queue: str) -> bool:
    """Whether a queue has a marker as the protocol describes it: a declaration with other properties is refused."""
    try:
        async with connection.channel() as channel:
            await channel.declare_exchange(queue, passive=True)
    except aio_pika.exceptions.ChannelNotFoundEntity:
        return False
    async with connection.channel() as channel:
        await channel.declare_exchange(queue, "fanout", durable=True, internal=True)
    return True


def test_all_consumers_mark_queues_in_the_same_way(every_broker: Broker) -> None:
    on_aio_pika, others = every_broker.queue(), every_broker.queue()

    async def main() -> None:
        async with connected(every_broker.url) as connection, await retryrmq.connect(every_broker.url) as client:
            await consume(connection, RetryConsumer(on_aio_pika, dlx=True, retry="fixed(1m)"), Seen(fail=9))
            await client.publish(on_aio_pika, b"7")
            consumer = client.consume(others, lambda message: None, dlx=True, retry="fixed(1m)")
            await consumer.start()
            for queue in (on_aio_pika, others):
                await soon(f"{queue} is marked", lambda queue=queue: is_marked(connection, f"{queue}.retry.60000"))
            await consumer.close()

    asyncio.run(main())


def test_what_is_given_up_is_parked_and_other_consumers_read_its_record(every_broker: Broker) -> None:
    queue = every_broker.queue()
    events: list[Event] = []

    async def main() -> None:
        seen = Seen(fail=9)
        async with connected(every_broker.url) as connection:
            retries = RetryConsumer(queue, dlx=True, retry=FAST, on_event=events.append, app_version="1.2")
            channel = await consume(connection, retries, seen)
            await channel.default_exchange.publish(aio_pika.Message(b"7", message_id="m"), queue)
            await soon("the event", lambda: any(isinstance(event, Parked) for event in events))
            assert await count(connection, queue) == 0
        async with retryrmq.connect(every_broker.url) as client, client.parked(queue) as parked:
            found = [it async for it in parked]
        assert [(it.reason, it.attempts, it.error, it.error_type) for it in found] == [
            ("exhausted", 3, "the till is closed", "ValueError")
        ]
        assert [entry.app_version for entry in found[0].message.history] == ["1.2"] * 3
        assert "raise self._error" in (found[0].stack or "")

    asyncio.run(main())


def test_a_consumer_of_this_package_uses_the_same_queues(every_broker: Broker) -> None:
    queue = every_broker.queue()

    async def main() -> None:
        seen = Seen(fail=1)
        async with retryrmq.connect(every_broker.url) as client, client.consume(queue, dlx=True, retry=FAST):
            pass
        async with connected(every_broker.url) as connection:
            channel = await consume(connection, RetryConsumer(queue, dlx=True, retry=FAST), seen)
            await channel.default_exchange.publish(aio_pika.Message(b"7"), queue)
            await soon("the second attempt", lambda: len(seen.runs) == 2)
            other = RetryConsumer(queue, dlx=True, retry=FAST, queue_type="classic")
            with pytest.raises(retryrmq.MismatchError, match="queue_type"):
                await other.start(connection)

    asyncio.run(main())


def test_signals_and_settling_by_hand_keep_their_meaning(broker: Broker) -> None:
    queue = broker.queue()
    events: list[Event] = []

    async def main() -> None:
        async def handle(message: AbstractIncomingMessage) -> None:
            what = message.body.decode()
            if what == "cancel" and "x-retry-count" not in message.headers:
                raise asyncio.CancelledError  # of something that it awaited
            if what == "park":
                raise retryrmq.Park("not ours")
            if what == "reject":
                await message.reject()
                raise ValueError("it was settled before")

        async with connected(broker.url) as connection:
            channel = await consume(
                connection, RetryConsumer(queue, dlx=True, retry=FAST, on_event=events.append), handle
            )
            for body in (b"park", b"reject", b"cancel", b"ok"):
                await channel.default_exchange.publish(aio_pika.Message(body), queue)
            # The work queue dead-letters what is rejected to its parking queue.
            await soon("two parked messages", lambda: is_count(connection, f"{queue}.parked", 2))
            await soon("the events", lambda: sorted(event.name for event in events) == ["parked", "retried"])

    async def is_count(connection: Any, name: str, wanted: int) -> bool:
        return await count(connection, name) == wanted

    asyncio.run(main())


def test_a_returned_copy_is_published_again_and_the_original_kept(broker: Broker) -> None:
    queue = broker.queue()
    events: list[Event] = []

    async def main() -> None:
        seen = Seen(fail=5)
        async with connected(broker.url) as connection:
            retries = RetryConsumer(queue, dlx=True, retry=FAST, on_event=events.append)
            channel = await consume(connection, retries, seen)
            async with connection.channel() as other:
                await other.queue_delete(f"{queue}.retry.200")
            # The same id for all: the client tells returned messages apart by nothing else.
            for _ in range(5):
                await channel.default_exchange.publish(aio_pika.Message(b"7", message_id="same"), queue)
            await soon("all of them", lambda: len(seen.runs) >= 10)
            await soon("the retries are told", lambda: sum(isinstance(event, Retried) for event in events) >= 5)
            assert any(isinstance(event, PublishFailed) for event in events)
            assert sum(isinstance(event, Retried) for event in events) == 5
            assert len(seen.runs) == 10

    asyncio.run(main())


def test_a_suspect_runs_alone_and_a_poison_message_is_parked(broker: Broker) -> None:
    queue = broker.queue()

    async def main() -> None:
        running, most, ends = 0, 0, asyncio.Event()

        async def handle(message: AbstractIncomingMessage) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if message.body == b"last":
                ends.set()
            await asyncio.sleep(0.2)  # another one would begin meanwhile
            running -= 1

        async with connected(broker.url) as connection:
            channel = await consume(connection, RetryConsumer(queue, dlx=True, retry=FAST), handle)
            for index in range(3):
                suspect = aio_pika.Message(b"suspect", headers={"x-retry-crashes": 3}, message_id=f"s{index}")
                await channel.default_exchange.publish(suspect, queue)
            poison = aio_pika.Message(b"poison", headers={"x-retry-crashes": 10})
            await channel.default_exchange.publish(poison, queue)
            parked = await taken(connection, f"{queue}.parked")
            assert (parked.body, parked.headers["x-retry-parked-reason"]) == (b"poison", "delivery-limit")
            await channel.default_exchange.publish(aio_pika.Message(b"last"), queue)
            await ends.wait()
            assert most == 1

    asyncio.run(main())


def test_a_crashed_message_that_waited_for_a_detour_does_not_begin_beside_a_suspect() -> None:
    async def main() -> None:
        turns = CrashIsolation()
        with turns.detour():
            crashed = asyncio.ensure_future(turns.begin(True))
            await asyncio.sleep(0)
            suspect = asyncio.ensure_future(turns.begin_alone(answered))
            await asyncio.sleep(0)
        assert (await crashed, await suspect) == (False, True)

    async def answered() -> None: ...

    asyncio.run(main())


def test_a_message_that_is_acknowledged_already_is_refused(broker: Broker) -> None:
    queue = broker.queue()

    async def main() -> None:
        async with connected(broker.url) as connection:
            retries = RetryConsumer(queue, dlx=True)
            await retries.start(connection)
            channel = await connection.channel()
            await channel.default_exchange.publish(aio_pika.Message(b"7"), queue)
            source = await channel.get_queue(queue)
            raw = await soon("the message", lambda: source.get(fail=False, no_ack=True))
            with pytest.raises(retryrmq.InvalidOptionError, match="`no_ack`"):
                await retries.begin(raw)

    asyncio.run(main())


def test_a_stream_and_options_that_cannot_work_are_refused(broker: Broker) -> None:
    queue = broker.queue()

    async def main() -> None:
        async with connected(broker.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue(queue, durable=True, arguments={"x-queue-type": "stream"})
            with pytest.raises(retryrmq.MismatchError, match="is a stream"):
                await RetryConsumer(queue, dlx=True).start(connection)
            with pytest.raises(retryrmq.QueueNotFoundError, match=r"\.parked"):
                await RetryConsumer(broker.queue(), dlx=True, declare=False).start(connection)

    asyncio.run(main())
    with pytest.raises(retryrmq.InvalidOptionError, match="`dlx`"):
        RetryConsumer("orders")
    with pytest.raises(retryrmq.InvalidTypeError, match="no option `prefetch`"):
        RetryConsumer("orders", dlx=True, prefetch=3)  # type: ignore[call-arg]
    with pytest.raises(retryrmq.InvalidTypeError, match="`on_event`"):
        RetryConsumer("orders", dlx=True, on_event=asyncio.sleep)  # type: ignore[arg-type]


def test_a_user_who_may_declare_nothing_uses_the_queues_that_exist(broker: Broker) -> None:
    queue = broker.queue()
    name = f"python-{uuid.uuid4().hex[:12]}"
    broker.api("PUT", f"/users/{name}", {"password": "p", "tags": ""})
    broker.users.append(name)
    broker.api("PUT", f"/permissions/%2F/{name}", {"configure": "", "write": ".*", "read": ".*"})

    async def main() -> None:
        seen = Seen(fail=1, error=retryrmq.RetryAfter("130ms"))
        async with connected(broker.url) as owner:
            await RetryConsumer(queue, dlx=True, retry=FAST).start(owner)
        async with connected(broker.url.replace("guest:guest", f"{name}:p")) as connection:
            channel = await consume(connection, RetryConsumer(queue, dlx=True, retry=FAST, declare=False), seen)
            await channel.default_exchange.publish(aio_pika.Message(b"7"), queue)
            await soon("the second attempt", lambda: len(seen.runs) == 2)

    asyncio.run(main())
