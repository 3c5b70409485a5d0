"""Handlers on threads: what waits for whom, and what ends when."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import retryrmq
from conftest import PATIENCE, Broker, eventually, soon
from proxy import Proxy
from retryrmq import _thread_workers
from retryrmq.options import Plan


def nothing(msg: retryrmq.Message) -> None: ...


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Who warned, and of what."""
    found = [it for it in caplog.records if it.name.startswith("retryrmq") and it.levelno >= logging.WARNING]
    return [(it.name, it.getMessage()) for it in found]


def test_no_acknowledgement_waits_for_a_slow_handler(broker: Broker) -> None:
    queue = broker.queue()
    gate, slow = threading.Event(), threading.Event()
    handled: list[str] = []

    def handle(msg: retryrmq.Message) -> None:
        if msg.text() == "slow":
            slow.set()
            gate.wait(60)
        handled.append(msg.text())

    with retryrmq.connect_blocking(broker.url) as client:
        with client.consume(queue, dlx=True):
            pass
        for number in range(300):  # so quick that more and more of them are taken at once
            client.publish(queue, str(number))
        client.publish(queue, "slow")
        with client.consume(queue, handle, dlx=True) as consumer:
            assert slow.wait(60)
            eventually("all that is handled is acknowledged", lambda: consumer.stats().acked == 300 == len(handled))
            gate.set()


@pytest.mark.parametrize("concurrency", [1, 2])
def test_the_limit_of_handlers_holds_in_the_drain(broker: Broker, concurrency: int) -> None:
    queue = broker.queue()
    gate, began = threading.Event(), threading.Event()

    def handle(msg: retryrmq.Message) -> None:
        began.set()
        gate.wait(60)

    options: Any = {"dlx": True, "retry": "fixed(100ms, retries=3)", "concurrency": concurrency}
    with retryrmq.connect_blocking(broker.url) as client:
        consumer = client.consume(queue, handle, handler_timeout="1500ms", **options).start()
        client.publish(queue, "a")
        assert began.wait(60)
        consumer.close()
        assert (consumer.stats().failed, consumer.stats().requeued) == (1, 0)
        gate.set()


@pytest.mark.parametrize("how", ["blocking", "loop"])
def test_a_drain_waits_for_a_thread_whose_message_is_settled(broker: Broker, how: str) -> None:
    queue = broker.queue()
    began, go_on = threading.Event(), threading.Event()
    ended: list[bool] = []

    def handle(msg: retryrmq.Message) -> None:
        msg.ack()
        began.set()
        go_on.wait(60)
        ended.append(True)

    def release(consumer: Any) -> None:
        eventually("it is closing", lambda: "closed" in repr(consumer))
        eventually("its message is settled", lambda: consumer.stats().acked == 1)
        threading.Timer(0.3, go_on.set).start()

    async def on_loop() -> None:
        async with retryrmq.connect(broker.url) as client:
            consumer = await client.consume(queue, handle, dlx=True).start()
            await client.publish(queue, "a")
            await asyncio.to_thread(began.wait, 60)
            threading.Thread(target=release, args=(consumer,)).start()
            await consumer.close()
            assert ended

    if how == "loop":
        asyncio.run(on_loop())
        return
    with retryrmq.connect_blocking(broker.url) as client:
        consumer = client.consume(queue, handle, dlx=True).start()
        client.publish(queue, "a")
        assert began.wait(60)
        threading.Thread(target=release, args=(consumer,)).start()
        consumer.close()
        assert ended


def test_a_drain_leaves_threads_behind_when_its_time_is_up(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    queue = broker.queue()
    began, go_on = threading.Event(), threading.Event()

    def handle(msg: retryrmq.Message) -> None:
        msg.ack()
        began.set()
        go_on.wait(60)

    with retryrmq.connect_blocking(broker.url) as client:
        consumer = client.consume(queue, handle, dlx=True, drain_timeout="200ms").start()
        client.publish(queue, "a")
        assert began.wait(60)
        consumer.close()
        # Another test's client may still log.
        assert [text for _, text in warnings(caplog) if queue in text] == [
            f"{queue}: abandoned the threads of 1 handlers that still run after `drain_timeout`"
        ]
        go_on.set()


@pytest.mark.parametrize("how", ["close", "stop"])
def test_what_no_handler_has_begun_does_not_wait_for_the_one_that_runs(
    broker: Broker, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    queue = broker.queue()
    began, go_on = threading.Event(), threading.Event()

    def handle(msg: retryrmq.Message) -> None:
        if msg.text() == "150":
            began.set()
            go_on.wait(60)

    with retryrmq.connect_blocking(broker.url) as client:
        with client.consume(queue, dlx=True):
            pass
        for number in range(250):  # so quick that more and more of them are taken at once
            client.publish(queue, str(number))
        consumer = client.consume(queue, handle, dlx=True, concurrency=1, drain_timeout="1s").start()
        assert began.wait(60)
        eventually("the next one has arrived", lambda: consumer.stats().delivered > 151)
        getattr(consumer, how)()
        if how == "close":
            eventually("the core warns", lambda: any(queue in text for _, text in warnings(caplog)))
            # Another test's client may still log.
            own = [(name, text.partition(";")[0]) for name, text in warnings(caplog) if queue in text]
            assert own == [("retryrmq.consumer", "handlers still running after the drain timeout of 1s: 1")]
        counted: dict[str, int] = {}
        with client.consume(queue, dlx=True) as again:
            for msg in again:
                counted[msg.text()] = msg.headers.get("x-delivery-count", 0)
                msg.ack()
                if len(counted) == 100:
                    break
        expected = {str(number): int(number == 150) for number in range(150, 250)}
        if how == "stop":  # the broker may have sent more that had not arrived here
            assert set(counted) == set(expected)
            assert (counted["150"], counted["151"]) == (1, 0)
        else:
            assert counted == expected
        go_on.set()


def test_a_handler_on_a_thread_may_close_its_own_consumer(broker: Broker) -> None:
    queue = broker.queue()
    closed: list[bool] = []

    def handle(msg: retryrmq.Message) -> None:
        consumer.close()
        closed.append(True)

    with retryrmq.connect_blocking(broker.url) as client:
        consumer = client.consume(queue, handle, dlx=True, drain_timeout="10m").start()  # longer than the test may take
        client.publish(queue, "a")
        consumer.run()
        assert closed and consumer.stats().acked == 1


def refuse_threads(monkeypatch: pytest.MonkeyPatch, queue: str, most: int) -> None:
    real: Callable[[threading.Thread], None] = threading.Thread.start
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if thread.name == f"retryrmq-{queue}":
            if len(started) == most:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.parametrize("how", ["blocking", "loop"])
def test_a_start_that_fails_midway_consumes_nothing(broker: Broker, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    queue = broker.queue()
    refuse_threads(monkeypatch, queue, 2)
    options: Any = {"dlx": True, "concurrency": 4}

    async def on_loop() -> None:
        async with retryrmq.connect(broker.url) as client:
            await client.consume(queue, nothing, **options).start()

    with retryrmq.connect_blocking(broker.url) as client:
        with pytest.raises(RuntimeError, match="new thread"):
            if how == "loop":
                asyncio.run(on_loop())
            else:
                client.consume(queue, nothing, **options).start()
        eventually(
            "nobody consumes", lambda: not [it for it in threading.enumerate() if it.name == f"retryrmq-{queue}"]
        )
        client.publish(queue, "a")
        with client.consume(queue, dlx=True) as again:
            for msg in again:
                assert msg.text() == "a" and not msg.redelivered
                msg.ack()
                break


@pytest.mark.parametrize("how", ["blocking", "loop"])
def test_closed_while_it_starts_it_never_consumes(broker: Broker, how: str) -> None:
    queue = broker.queue()

    async def on_loop() -> None:
        proxy = Proxy(broker.url)
        async with retryrmq.connect(proxy.url) as client:
            async with client.consume(queue, dlx=True):
                pass
            await client.publish(queue, "a")
            consumer = client.consume(queue, nothing, dlx=True)
            proxy.hold_up(proxy.connections)  # otherwise it may be started before it is closed
            starting = asyncio.ensure_future(consumer.start())
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(consumer.close())
            await asyncio.sleep(0)
            proxy.go_on()
            await closing
            with pytest.raises(retryrmq.ClosedError):
                await starting
            # Whether the broker had given it the message by then depends on which of the two was quicker.
            await soon("nobody consumes", lambda: not [it for it in threading.enumerate() if queue in it.name])
            async with client.consume(queue, dlx=True) as again:
                async for msg in again:
                    assert msg.text() == "a"
                    await msg.ack()
                    break
        proxy.close()

    if how == "loop":
        asyncio.run(on_loop())
        return
    with retryrmq.connect_blocking(broker.url) as client:
        for _ in range(20):
            consumer = client.consume(queue, nothing, dlx=True)
            refused: list[BaseException] = []

            def start(consumer: retryrmq.BlockingConsumer = consumer, refused: list[Any] = refused) -> None:
                try:
                    consumer.start()
                except retryrmq.ClosedError as error:
                    refused.append(error)

            starting = threading.Thread(target=start)
            starting.start()
            consumer.close()
            starting.join(PATIENCE)
            assert not starting.is_alive()
        eventually("no thread is left", lambda: not [it for it in threading.enumerate() if queue in it.name])


def test_started_twice_at_once_it_subscribes_once(broker: Broker) -> None:
    queue = broker.queue()

    async def main() -> None:
        async with retryrmq.connect(broker.url) as client:
            consumer = client.consume(queue, dlx=True)
            await asyncio.gather(consumer.start(), consumer.start(), consumer.start())
            await consumer.close()
            await client.publish(queue, "a")
            async with client.consume(queue, dlx=True) as another:
                async for msg in another:  # nobody else takes it
                    assert not msg.redelivered
                    await msg.ack()
                    break

    asyncio.run(main())


def test_a_thread_that_fails_goes_on_with_what_it_had_taken(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = broker.queue()
    handled: list[str] = []
    faults = iter([MemoryError("no room")])
    failed = _thread_workers.failed

    def fails_once(plan: Plan, message: retryrmq.Message, error: BaseException) -> None:
        for fault in faults:
            raise fault
        failed(plan, message, error)

    def handle(msg: retryrmq.Message) -> None:
        handled.append(msg.text())
        if msg.text() == "130" and handled.count("130") == 1:
            raise ValueError("not yet")

    monkeypatch.setattr(_thread_workers, "failed", fails_once)
    with retryrmq.connect_blocking(broker.url) as client:
        with client.consume(queue, dlx=True):
            pass
        for number in range(200):  # so quick that more and more of them are taken at once
            client.publish(queue, str(number))
        with client.consume(queue, handle, dlx=True, concurrency=1) as consumer:
            eventually("all are handled", lambda: consumer.stats().acked == 200)
            assert sorted(map(int, handled)) == sorted([*range(200), 130])
            assert consumer.stats().outstanding == 0
