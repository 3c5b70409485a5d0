"""Listeners of events: told in order, all of it, and in nobody's way."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import weakref
from datetime import timedelta
from typing import Any

import pytest
import retryrmq
from conftest import Broker, eventually, soon
from retryrmq import _listeners, _native, _notifications


def fail(msg: retryrmq.Message) -> None:
    raise ValueError("no")


PARKED: Any = {"dlx": True, "retry": "fixed(50ms, retries=0)"}


def test_a_slow_listener_is_in_nobodys_way(broker: Broker) -> None:
    slow, other = broker.queue("slow"), broker.queue("other")
    told, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def tell(event: retryrmq.Event) -> None:
        told.set()
        go_on.wait(60)

    async def handle(msg: retryrmq.Message) -> None:
        seen.append(msg.text())

    async def main() -> None:
        async with (
            retryrmq.connect(broker.url) as client,
            client.consume(slow, fail, on_event=tell, **PARKED),
            client.consume(other, handle, dlx=True),
        ):
            await client.publish(slow, "a")
            await soon("the listener is told", told.is_set)
            await asyncio.wait_for(client.publish(other, "b"), 60)
            await soon("the other one goes on", lambda: seen == ["b"])
            go_on.set()

    asyncio.run(main())


def test_a_listener_may_wait_for_the_event_loop(broker: Broker) -> None:
    queue, alerts = broker.queue(), broker.queue("alerts")
    done: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with retryrmq.connect(broker.url) as client:
            async with client.consume(alerts, dlx=True):
                pass

            def alert(event: retryrmq.Event) -> None:
                asyncio.run_coroutine_threadsafe(client.publish(alerts, "alert"), loop).result(60)
                done.append("published")

            async with client.consume(queue, fail, on_event=alert, **PARKED):
                await client.publish(queue, "a")
                await soon("it is published", lambda: done)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["blocking", "loop", "threads on a loop"])
def test_what_happens_until_the_end_is_told(broker: Broker, how: str) -> None:
    queue = broker.queue()
    told: list[retryrmq.Event] = []
    began = threading.Event()

    def handle(msg: retryrmq.Message) -> None:
        began.set()
        raise ValueError("no")

    async def handle_async(msg: retryrmq.Message) -> None:
        handle(msg)

    async def main() -> None:
        handler: Any = handle_async if how == "loop" else handle
        async with retryrmq.connect(broker.url) as client:
            async with client.consume(queue, handler, on_event=told.append, **PARKED):
                await client.publish(queue, "a")
                await soon("it began", began.is_set)
            assert [event.name for event in told] == ["parked"]

    for _ in range(5):
        told.clear()
        began.clear()
        if how != "blocking":
            asyncio.run(main())
            continue
        with retryrmq.connect_blocking(broker.url) as client:
            with client.consume(queue, handle, on_event=told.append, **PARKED):
                client.publish(queue, "a")
                assert began.wait(60)
            assert [event.name for event in told] == ["parked"]


def test_a_slow_listener_is_told_all_of_it_after_the_end(broker: Broker) -> None:
    queue = broker.queue()
    told: list[retryrmq.Event] = []
    go_on = threading.Event()

    def tell(event: retryrmq.Event) -> None:
        go_on.wait(60)
        told.append(event)

    with retryrmq.connect_blocking(broker.url) as client:
        with client.consume(queue, fail, on_event=tell, **PARKED) as consumer:
            for _ in range(20):
                client.publish(queue, "a")
            eventually("all are parked", lambda: consumer.stats().parked == 20)
        go_on.set()
        eventually("all is told", lambda: len(told) == 20)


@pytest.mark.parametrize("how", ["close", "stop", "client"])
def test_a_listener_is_let_go_of(broker: Broker, how: str) -> None:
    queue = broker.queue()

    class Tell:
        def __call__(self, event: retryrmq.Event) -> None: ...

    def blocking() -> weakref.ref[Any]:
        tell = Tell()
        client = retryrmq.connect_blocking(broker.url)
        consumer = client.consume(queue, fail, on_event=tell, **PARKED).start()
        if how != "client":
            getattr(consumer, how)()
        client.close()
        return weakref.ref(tell)

    async def on_loop() -> weakref.ref[Any]:
        async def handle(msg: retryrmq.Message) -> None: ...

        tell = Tell()
        client = await retryrmq.connect(broker.url)
        consumer = await client.consume(queue, handle, on_event=tell, **PARKED).start()
        if how == "close":
            await consumer.close()
        elif how == "stop":
            consumer.stop()
        await client.close()
        return weakref.ref(tell)

    def is_gone(listener: weakref.ref[Any]) -> bool:
        gc.collect()
        return listener() is None

    gone = blocking()
    eventually("the listener of a thread is gone", lambda: is_gone(gone))
    gone = asyncio.run(on_loop())
    eventually("the listener of an event loop is gone", lambda: is_gone(gone))


def test_what_is_too_much_for_a_listener_is_dropped_and_said(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()
    told: list[retryrmq.Event] = []

    def tell(event: retryrmq.Event) -> None:
        go_on.wait(60)
        told.append(event)

    listener_queue = _listeners.ThreadListenerQueue(tell)
    listener_queue.put(retryrmq.Resumed("orders"))
    eventually("the first one is being told", lambda: listener_queue.left == 0)
    for _ in range(_listeners.MAX_EVENTS + 7):
        listener_queue.put(retryrmq.Resumed("orders"))
    go_on.set()
    listener_queue.end()
    listener_queue.done.result(60)
    assert len(told) == _listeners.MAX_EVENTS + 1

    def said() -> int:
        lines = [record.getMessage() for record in caplog.records]
        return sum(int(line.split()[0]) for line in lines if "events were dropped" in line)

    eventually("all that were dropped are said", lambda: said() == 7)


def test_an_event_that_cannot_be_made_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = _notifications.dispatcher()
    told: list[retryrmq.Event] = []
    number = dispatcher.add_listener(_listeners.ThreadListenerQueue(told.append))
    dispatcher._deliver_event(number, '{"name": "resumed", "queue": "orders", "a later fact": 5}')
    eventually("it is logged", lambda: "'resumed' could not be decoded" in caplog.text)
    dispatcher._deliver_event(number, '{"name": "paused", "queue": "orders", "delay": 5000000000}')
    eventually("the next one is told", lambda: told == [retryrmq.Paused("orders", timedelta(seconds=5))])
    dispatcher.remove_listener(number)


def test_the_core_learns_which_lines_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    _notifications.dispatcher()
    said: list[int] = []
    monkeypatch.setattr(_native, "want_lines", said.append)
    package, part = logging.getLogger("retryrmq"), logging.getLogger("retryrmq.attempt")
    before = package.level
    try:
        for level in (logging.DEBUG, logging.INFO, logging.CRITICAL):
            package.setLevel(level)
            _notifications.dispatcher()
        part.setLevel(logging.INFO)
        _notifications.dispatcher()
        for highest in (logging.INFO, sys.maxsize):
            logging.disable(highest)
            _notifications.dispatcher()
    finally:
        package.setLevel(before)
        part.setLevel(logging.NOTSET)
        logging.disable(logging.NOTSET)
    assert said == [logging.DEBUG, logging.INFO, logging.CRITICAL, logging.INFO, logging.INFO + 1, logging.CRITICAL]
