"""Retries for FastStream."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import subprocess
from collections.abc import AsyncIterator
from typing import Annotated, Any

import aio_pika
import pytest
import retryrmq
from conftest import Broker, soon
from faststream import AckPolicy, BaseMiddleware, Depends, FastStream, Path
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SetupError
from faststream.rabbit import (
    Channel,
    ExchangeType,
    RabbitBroker,
    RabbitExchange,
    RabbitMessage,
    RabbitQueue,
    RabbitRouter,
    TestRabbitBroker,
)
from faststream.rabbit.opentelemetry import RabbitTelemetryMiddleware
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from program import Program
from pydantic import BaseModel
from retryrmq.events import Event, Parked, Retried
from retryrmq.faststream import CurrentMessage, RetryMiddleware

FAST = "fixed(200ms, retries=2)"


class Order(BaseModel):
    id: int


class Setup:
    """A broker with retries, and the events."""

    def __init__(self, url: str = "amqp://localhost", middlewares: Any = (), **options: Any) -> None:
        self.events: list[Event] = []
        options = {"dlx": True, "retry": FAST, **options}
        self.retries = RetryMiddleware(on_event=self.events.append, **options)
        self.broker = RabbitBroker(
            url,
            middlewares=[self.retries, *middlewares],
            ack_policy=AckPolicy.MANUAL,
            default_channel=Channel(prefetch_count=10),
            logger=None,
        )
        self.app = FastStream(self.broker, on_startup=[self.retries.start], logger=None)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[RabbitBroker]:
        await self.app.start()
        try:
            yield self.broker
        finally:
            await self.app.stop()

    def names(self) -> list[str]:
        return [event.name for event in self.events]


def of(queue: str) -> RabbitQueue:
    return RabbitQueue(queue, durable=True, arguments={"x-queue-type": "quorum"})


async def rows(broker: Broker, queue: str) -> list[tuple[str | None, str, str]]:
    async with retryrmq.connect(broker.url) as client, client.parked(queue) as parked:
        return [(it.reason, it.error_type, it.message.text()) async for it in parked]


async def empty(url: str, queue: str) -> bool:
    """Whether nothing of the queue is ready."""
    async with await aio_pika.connect_robust(url) as connection, connection.channel() as channel:
        found = await channel.declare_queue(queue, passive=True)
        return found.declaration_result.message_count == 0


def test_a_typed_handler_is_retried_and_its_failures_are_parked(every_broker: Broker) -> None:
    queue = every_broker.queue()
    setup = Setup(every_broker.url)
    runs: list[tuple[int, int, str]] = []

    @setup.broker.subscriber(of(queue))
    async def handle(order: Order, message: CurrentMessage, key: Annotated[str, Depends(lambda: "db")]) -> None:
        runs.append((order.id, message.attempt, key))
        if order.id == 3:
            Order(id="of another service")  # type: ignore[arg-type]
        if order.id == 1 or message.attempt == 1:
            raise ConnectionError("the till is closed")

    async def main() -> None:
        async with setup.running() as broker:
            await broker.publish({"id": 1}, queue)
            await broker.publish({"id": 2}, queue)
            await broker.publish({"id": "none"}, queue)
            await broker.publish({"id": 3}, queue)
            await soon("all of them", lambda: len(runs) == 8 and setup.names().count("parked") == 3)
        assert sorted(runs) == [
            (1, 1, "db"),
            (1, 2, "db"),
            (1, 3, "db"),
            (2, 1, "db"),
            (2, 2, "db"),
            *((3, n, "db") for n in (1, 2, 3)),
        ]
        assert sorted(await rows(every_broker, queue)) == [
            ("exhausted", "ConnectionError", '{"id":1}'),
            ("exhausted", "ValidationError", '{"id":3}'),
            ("undecodable", "ValidationError", '{"id":"none"}'),
        ]
        assert await empty(every_broker.url, queue)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "events", "reason"),
    [
        (retryrmq.Park("not ours"), ["parked"], "requested"),
        (retryrmq.Defer("50ms"), ["deferred"], None),
        (retryrmq.RetryAfter("50ms"), ["retried"], None),
        (KeyError("id"), ["parked"], "fatal"),
        (AckMessage(), [], None),
        (RejectMessage(), [], "rejected"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_signals_and_faststream_s_own_keep_their_meaning(
    broker: Broker, error: Exception, events: list[str], reason: str | None
) -> None:
    queue = broker.queue()
    setup = Setup(broker.url, fatal=KeyError)
    runs: list[str] = []

    @setup.broker.subscriber(RabbitQueue(queue, declare=False))
    async def handle(body: str) -> None:
        runs.append(body)
        if body == "first" and runs.count("first") == 1:
            raise error

    async def main() -> None:
        async with retryrmq.connect(broker.url) as client, client.consume(queue, dlx=True, retry=FAST):
            pass  # it makes the queue, which dead-letters to its parking queue
        async with setup.running() as running:
            await running.publish("first", queue)
            await soon("the first", lambda: runs)
            await running.publish("last", queue)
            again = events in (["deferred"], ["retried"])
            await soon("all of them", lambda: len(runs) == (3 if again else 2) and setup.names() == events)
        assert await soon("empty", lambda: empty(broker.url, queue))
        if reason is not None:
            found = await soon("the parked one", lambda: rows(broker, queue))
            assert [row[0] for row in found] == [reason]

    asyncio.run(main())


def test_a_nacked_message_is_requeued_and_one_settled_by_hand_stays_settled(broker: Broker) -> None:
    queue = broker.queue()
    setup = Setup(broker.url)
    runs: list[tuple[str, bool]] = []

    @setup.broker.subscriber(of(queue))
    async def handle(body: str, message: RabbitMessage) -> None:
        runs.append((body, bool(message.raw_message.redelivered)))
        if body == "nack" and len(runs) == 1:
            raise NackMessage
        if body == "ack":
            await message.ack()
            raise ValueError("it was settled before")

    async def main() -> None:
        async with setup.running() as running:
            await running.publish("nack", queue)
            await soon("twice", lambda: len(runs) == 2)
            await running.publish("ack", queue)
            await soon("the other", lambda: len(runs) == 3)
        assert runs == [("nack", False), ("nack", True), ("ack", False)]
        assert await soon("empty", lambda: empty(broker.url, queue))
        assert "retried" not in setup.names()

    asyncio.run(main())


def test_a_retry_has_the_exchange_and_the_routing_key_of_the_first_publication(broker: Broker) -> None:
    name = broker.queue()
    setup = Setup(broker.url)
    runs: list[tuple[str, int, str | None, str | None]] = []
    queue = RabbitQueue(name, durable=True, arguments={"x-queue-type": "quorum"}, routing_key="orders.{country}")
    exchange = RabbitExchange(name, type=ExchangeType.TOPIC, auto_delete=True)
    subscriber = setup.broker.subscriber(queue, exchange)

    @subscriber(filter=lambda message: str(message.raw_message.routing_key).startswith("orders."))
    async def handle(raw: RabbitMessage, message: CurrentMessage, country: str = Path()) -> None:
        runs.append((country, message.attempt, raw.raw_message.exchange, raw.raw_message.routing_key))
        if message.attempt == 1:
            raise ConnectionError("no")

    async def main() -> None:
        async with setup.running() as running:
            await running.publish("7", exchange=exchange, routing_key="orders.de")
            await soon("twice", lambda: len(runs) == 2 or "parked" in setup.names())
        assert runs == [("de", n, name, "orders.de") for n in (1, 2)]

    asyncio.run(main())


class Guard(BaseMiddleware[Any, Any]):
    """A middleware that needs something that is out of order."""

    async def on_receive(self) -> None:
        if self.msg.body == b"guarded":
            raise ConnectionError("the limiter is closed")
        return await super().on_receive()


async def parsed(message: Any, original: Any) -> Any:
    if message.body == b"unparsed":
        raise LookupError("no such schema")
    return await original(message)


async def decoded(message: Any, original: Any) -> Any:
    if message.body == b"undecoded":
        raise LookupError("no such schema")
    return await original(message)


async def accepted(message: Any) -> bool:
    await message.decode()
    if message.body == b"unfiltered":
        raise ConnectionError("the list of filters is closed")
    return True


def test_only_errors_of_a_body_s_decoding_say_that_it_is_undecodable(broker: Broker) -> None:
    queue = broker.queue()
    setup = Setup(broker.url, middlewares=[Guard], retry="fixed(100ms, retries=1)")
    subscriber = setup.broker.subscriber(of(queue), parser=parsed, decoder=decoded)

    @subscriber(filter=accepted)
    async def handle(body: str) -> None: ...

    async def main() -> None:
        async with setup.running() as running:
            for body in ("guarded", "unparsed", "undecoded", "unfiltered"):
                await running.publish(body, queue)
            await soon("all of them", lambda: setup.names().count("parked") == 4)
        assert sorted(await rows(broker, queue)) == [
            ("exhausted", "ConnectionError", "guarded"),
            ("exhausted", "ConnectionError", "unfiltered"),
            ("undecodable", "LookupError", "undecoded"),
            ("undecodable", "LookupError", "unparsed"),
        ]

    asyncio.run(main())


def test_what_a_handler_fetches_itself_is_not_settled_for_it(broker: Broker) -> None:
    queue, fetched, asked = broker.queue(), broker.queue("fetched"), broker.queue("asked")
    setup = Setup(broker.url)
    source = setup.broker.subscriber(of(fetched))
    got: list[Any] = []

    @setup.broker.subscriber(of(asked))
    async def answer(body: str) -> str:
        return f"{body}!"

    @setup.broker.subscriber(of(queue))
    async def handle(body: str) -> None:
        one = await source.get_one(no_ack=False)
        assert one is not None
        got.append((one.body, one.raw_message.processed))
        await one.ack()
        async for each in source:
            got.append((each.body, each.raw_message.processed))
            break
        got.append(await (await setup.broker.request("ping", asked)).decode())

    async def main() -> None:
        async with setup.running() as running:
            for body in ("one", "two"):
                await running.publish(body, fetched)
            await running.publish("7", queue)
            await soon("all of it", lambda: len(got) == 3)
        assert got == [(b"one", False), (b"two", False), "ping!"]
        assert setup.events == []

    asyncio.run(main())


def test_a_test_broker_reports_what_would_happen_and_the_test_sees_the_error() -> None:
    setup = Setup()
    seen: list[int] = []

    @setup.broker.subscriber("orders")
    async def handle(order: Order, message: CurrentMessage) -> None:
        seen.append(message.attempt)
        if order.id == 13:
            raise retryrmq.Park("nobody ships it")
        raise ConnectionError("no")

    async def main() -> None:
        async with TestRabbitBroker(setup.broker) as broker:
            await setup.retries.start(broker)
            with pytest.raises(ConnectionError):
                await broker.publish({"id": 7}, "orders")
            with pytest.raises(retryrmq.Park):
                await broker.publish({"id": 13}, "orders")
            with pytest.raises(ConnectionError):
                await broker.publish({"id": 7}, "orders", headers={"x-retry-count": 2})

    asyncio.run(main())
    assert seen == [1, 1, 3]
    retried, parked, exhausted = setup.events
    assert isinstance(retried, Retried) and retried.attempt == 1
    assert isinstance(parked, Parked) and parked.reason == "requested"
    assert isinstance(exhausted, Parked) and exhausted.reason == "exhausted"


def test_each_attempt_is_a_span_of_one_trace(broker: Broker) -> None:
    queue = broker.queue()
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    setup = Setup(broker.url, middlewares=[RabbitTelemetryMiddleware(tracer_provider=provider)])
    attempts: list[int] = []

    @setup.broker.subscriber(of(queue))
    async def handle(message: CurrentMessage) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise ValueError("no")

    async def main() -> None:
        async with setup.running() as running:
            await running.publish("7", queue)
            await soon("both spans have ended", lambda: len(processed()) == 2)
        assert attempts == [1, 2]

    def processed() -> list[Any]:
        return [span for span in exporter.get_finished_spans() if span.name.endswith("process")]

    asyncio.run(main())
    assert len(processed()) == 2
    assert len({span.context.trace_id for span in exporter.get_finished_spans()}) == 1


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_stream_is_refused_at_the_start(broker: Broker, is_declared: bool) -> None:
    queue = broker.queue()
    setup = Setup(broker.url)
    stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}

    @setup.broker.subscriber(RabbitQueue(queue, declare=False) if is_declared else RabbitQueue(queue, **stream))
    async def handle(body: str) -> None: ...

    async def main() -> None:
        if is_declared:
            async with await aio_pika.connect_robust(broker.url) as connection, connection.channel() as channel:
                await channel.declare_queue(queue, **stream)
        with pytest.raises(retryrmq.MismatchError, match="is a stream"):
            await setup.retries.start(setup.broker)
        await setup.broker.stop()

    asyncio.run(main())


@pytest.mark.parametrize("policy", [None, AckPolicy.NACK_ON_ERROR, AckPolicy.ACK_FIRST])
def test_a_subscriber_that_acknowledges_by_itself_is_refused_at_the_start(
    broker: Broker, policy: AckPolicy | None
) -> None:
    retries = RetryMiddleware(dlx=True)
    rabbit = RabbitBroker(broker.url, middlewares=[retries], logger=None)
    more = {} if policy is None else {"ack_policy": policy}

    @rabbit.subscriber(broker.queue(), **more)
    async def handle(body: str) -> None: ...

    async def main() -> None:
        with pytest.raises(SetupError, match=r"ack_policy=AckPolicy\.MANUAL"):
            await retries.start(rabbit)
        await rabbit.stop()

    asyncio.run(main())


def test_a_second_subscriber_of_a_queue_is_checked_too(broker: Broker) -> None:
    queue = broker.queue()
    setup = Setup(broker.url)

    @setup.broker.subscriber(of(queue))
    async def right(body: str) -> None: ...

    @setup.broker.subscriber(of(queue), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def wrong(body: str) -> None: ...

    async def main() -> None:
        with pytest.raises(SetupError, match=r"ack_policy=AckPolicy\.MANUAL"):
            await setup.retries.start(setup.broker)
        await setup.broker.stop()

    asyncio.run(main())


def test_a_message_of_such_a_subscriber_stays_in_its_queue(broker: Broker) -> None:
    queue = broker.queue()
    rabbit = RabbitBroker(broker.url, middlewares=[RetryMiddleware(dlx=True)], logger=None)
    runs: list[str] = []

    @rabbit.subscriber(of(queue), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str) -> None:
        runs.append(body)

    async def main() -> None:
        await rabbit.start()
        await rabbit.publish("7", queue)
        await soon("delivered", lambda: unacknowledged(broker, queue) == 1)
        await rabbit.stop()
        async with await aio_pika.connect_robust(broker.url) as connection, connection.channel() as channel:
            source = await channel.get_queue(queue)
            found = await soon("the message", lambda: source.get(fail=False))
            assert (found.body, found.redelivered, runs) == (b"7", True, [])
            await found.ack()

    asyncio.run(main())


def unacknowledged(broker: Broker, queue: str) -> int:
    found = broker.api("GET", f"/queues/%2F/{queue}")
    return int(found.get("messages_unacknowledged", 0))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dlx": False}, "`dlx`"),
        ({"dlx": True, "work_queue": "existing"}, "`work_queue`"),
        ({"dlx": True, "invalid_body": "drop"}, "`invalid_body`"),
        ({"dlx": True, "strategy": "native", "retry": "fixed(5s)"}, "`retry-queues`"),
        ({"dlx": True, "prefetch": 5}, "no option `prefetch`"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises((retryrmq.RetryRmqError, SetupError), match=says):
        RetryMiddleware(**options)


def test_a_router_has_options_of_its_own(broker: Broker) -> None:
    prefix, queue = broker.queue("router"), "orders"
    events: list[Event] = []
    router = RabbitRouter(
        prefix=f"{prefix}.",
        middlewares=[RetryMiddleware(dlx=True, retry="fixed(100ms, retries=0)", on_event=events.append)],
    )

    @router.subscriber(of(queue), ack_policy=AckPolicy.MANUAL)
    async def handle(body: str) -> None:
        raise ValueError("no")

    rabbit = RabbitBroker(broker.url, ack_policy=AckPolicy.MANUAL, logger=None)
    rabbit.include_router(router)

    async def main() -> None:
        await rabbit.start()
        await rabbit.publish("7", f"{prefix}.{queue}")
        await soon("parked", lambda: events)
        await rabbit.stop()
        assert [row[0] for row in await rows(broker, f"{prefix}.{queue}")] == ["exhausted"]

    asyncio.run(main())


WORKER = """
from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue
from retryrmq.faststream import CurrentMessage, RetryMiddleware

retries = RetryMiddleware(dlx=True, retry="fixed(100ms, retries=3)")
broker = RabbitBroker(url, middlewares=[retries], ack_policy=AckPolicy.MANUAL, default_channel=Channel(prefetch_count=20), logger=None)
app = FastStream(broker, on_startup=[retries.start], logger=None)

@broker.subscriber(RabbitQueue(queue, durable=True, arguments={"x-queue-type": "quorum"}))
async def handle(body: str, message: CurrentMessage) -> None:
    say(body=body, attempt=message.attempt)
    await asyncio.sleep(0.02)
    if message.attempt < 3:
        raise ConnectionError("no")
    say(handled=body)

asyncio.run(app.run())
"""


def test_a_worker_that_is_killed_in_the_middle_loses_nothing(every_broker: Broker, programs: list[Program]) -> None:
    queue = every_broker.queue()
    bodies = {f"order-{index}" for index in range(100)}

    async def publish() -> None:
        async with retryrmq.connect(every_broker.url) as client:
            for body in sorted(bodies):
                await client.publish(queue, body)

    handled: set[str] = set()
    for life in range(3):
        program = Program(WORKER, every_broker, queue)
        programs.append(program)
        if life == 0:
            program.process.poll()
            asyncio.run(soon("the queue", lambda: exists(every_broker, queue)))
            asyncio.run(publish())
        # Two workers are killed in the middle of their work; the last one does the rest.
        while len(handled) < (30, 60, 100)[life]:
            line = program.line()
            if "handled" in line:
                handled.add(line["handled"])
        program.process.kill()
        handled |= {line["handled"] for line in program.lines() if "handled" in line}
    assert handled == bodies
    assert asyncio.run(rows(every_broker, queue)) == []


async def exists(broker: Broker, queue: str) -> bool:
    return any(found["name"] == queue for found in broker.api("GET", "/queues/%2F?columns=name"))


def test_a_connection_that_is_closed_loses_nothing(broker: Broker) -> None:
    queue = broker.queue()
    setup = Setup(broker.url, retry="fixed(100ms, retries=9)")
    bodies = {f"order-{index}" for index in range(60)}
    handled: set[str] = set()

    @setup.broker.subscriber(of(queue))
    async def handle(body: str, message: CurrentMessage) -> None:
        await asyncio.sleep(0.01)
        if message.attempt < 3:
            raise ConnectionError("no")
        handled.add(body)

    async def main() -> None:
        async with setup.running() as running:
            connection: Any = await running.connect()
            for body in sorted(bodies):
                await running.publish(body, queue)
            for wanted in (10, 30):
                await soon("some of them", lambda least=wanted: len(handled) >= least)  # type: ignore[misc]
                with contextlib.suppress(Exception):
                    connection.transport.connection._writer_task.cancel()  # as if the network broke
            await soon("all of them", lambda: handled == bodies)

    asyncio.run(main())


class Node:
    """A broker of our own, which may be killed."""

    def __init__(self, version: str) -> None:
        lines = os.environ.get("RETRYRMQ_TEST_BROKERS", "").strip().splitlines()
        control = next((line.split("|")[3] for line in lines if line.startswith(f"{version}|")), "")
        if not control:
            pytest.skip("these brokers may not be killed")
        self._control = shlex.split(control)
        self._version = ".".join(version.split(".")[:2])
        self._number = self._run("spawn", numbered=False).split()[-1]
        self.url = self._run("url").split()[0]

    def _run(self, what: str, numbered: bool = True) -> str:
        command = [*self._control, what, self._version, *([self._number] if numbered else [])]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout

    def kill(self) -> None:
        self._run("kill")

    def alarm(self, is_on: bool) -> None:
        limit = "0" if is_on else "0.6"
        command = [*self._control, "ctl", self._version, self._number, "--", "set_vm_memory_high_watermark", limit]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)

    def start(self) -> None:
        self._run("start")

    def release(self) -> None:
        self._run("release")


@pytest.mark.timeout(600)
def test_an_alarm_that_lasts_too_long_does_not_multiply_messages(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retryrmq.aio_pika._STORE_TIMEOUT", 3.0)
    monkeypatch.setattr("retryrmq._aiormq_publisher._BROKER_TIMEOUT", 3.0)
    node = Node(broker.version)
    setup = Setup(node.url)
    runs: list[tuple[str, int]] = []

    @setup.broker.subscriber(of("orders"))
    async def handle(body: str, message: CurrentMessage) -> None:
        if (body, message.attempt) == ("alarm", 1):
            await asyncio.to_thread(node.alarm, True)
        runs.append((body, message.attempt))
        if message.attempt == 1:
            raise ConnectionError("no")

    async def main() -> None:
        async with setup.running() as running:
            for body in ("old", "alarm", "last"):  # a copy in a queue that is not old waits
                await running.publish(body, "orders")
                if body == "alarm":
                    await soon("the alarm", lambda: ("alarm", 1) in runs)
                    await asyncio.sleep(18)  # several times longer than a copy may take
                    await asyncio.to_thread(node.alarm, False)
                await soon("the retry", lambda what=body: (what, 2) in runs)  # type: ignore[misc]
        assert runs == [(body, attempt) for body in ("old", "alarm", "last") for attempt in (1, 2)]

    try:
        asyncio.run(main())
    finally:
        node.release()


@pytest.mark.timeout(600)
def test_a_broker_that_is_killed_loses_nothing(every_broker: Broker, programs: list[Program]) -> None:
    node = Node(every_broker.version)
    queue, bodies = "orders", {f"order-{index}" for index in range(100)}

    async def publish() -> None:
        async with (
            retryrmq.connect(node.url) as client,
            client.consume(queue, dlx=True, retry="fixed(100ms, retries=3)"),
        ):
            pass
        async with retryrmq.connect(node.url) as client:
            for body in sorted(bodies):
                await client.publish(queue, body)

    try:
        asyncio.run(publish())
        # The queue has other arguments than the worker would declare.
        source = WORKER.replace('durable=True, arguments={"x-queue-type": "quorum"}', "declare=False")
        program = Program(source, every_broker, queue, url=node.url)
        programs.append(program)
        handled: set[str] = set()
        for wanted in (10, 100):
            while len(handled) < wanted:
                line = program.line()
                if "handled" in line:
                    handled.add(line["handled"])
            if wanted == 10:
                node.kill()
                node.start()
        assert handled == bodies
    finally:
        for program in programs:
            program.process.kill()
        node.release()
