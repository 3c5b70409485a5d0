"""The app: when it ends, and who may ask for it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import retryrmq
from conftest import Broker, soon


def nothing(msg: retryrmq.Message) -> None: ...


@pytest.mark.parametrize("how", ["loop", "thread"])
def test_an_app_that_is_stopped_while_it_starts_ends(broker: Broker, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    queues = [broker.queue(name) for name in ("first", "second", "third")]
    app = retryrmq.App(broker.url)
    for queue in queues:
        app.consume(queue, dlx=True)(nothing)

    class Stopping(retryrmq.Consumer):
        async def start(self) -> retryrmq.Consumer:
            if self.queue == queues[1]:
                if how == "thread":
                    await asyncio.to_thread(app.stop)
                else:
                    app.stop()
            return await super().start()

    monkeypatch.setattr("retryrmq.client.Consumer", Stopping)
    asyncio.run(asyncio.wait_for(app.serve(), 60))
    assert list(app.stats()) == queues[:2]
    monkeypatch.undo()

    async def again() -> None:  # what stopped it then is over
        serving = asyncio.ensure_future(app.serve())
        await soon("all are started", lambda: list(app.stats()) == queues and app._consumers[2:])
        app.stop()
        await asyncio.wait_for(serving, 60)

    asyncio.run(again())


def test_an_app_is_stopped_on_its_own_thread_whoever_asks(broker: Broker) -> None:
    queue = broker.queue()
    drained: list[threading.Thread] = []

    class Watched(retryrmq.App):
        def _drain(self) -> None:
            drained.append(threading.current_thread())
            super()._drain()

    app = Watched(broker.url)

    @app.consume(queue, dlx=True)
    def handle(msg: retryrmq.Message) -> None:
        assert threading.current_thread() is not threading.main_thread()
        app.stop()

    async def main() -> None:
        async with app:
            await app.publish(queue, "a")
            await asyncio.wait_for(app.wait_closed(), 60)

    asyncio.run(main())
    assert drained == [threading.main_thread()]
    assert app.stats()[queue].acked == 1
    app.stop()  # nothing to stop any more


@pytest.mark.parametrize("how", ["async", "sync"])
def test_an_app_that_is_cancelled_drains(broker: Broker, how: str) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    began, go_on = threading.Event(), threading.Event()

    async def handle_async(msg: retryrmq.Message) -> None:
        began.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)

    def handle(msg: retryrmq.Message) -> None:
        began.set()
        go_on.wait(60)

    handler: Any = handle if how == "sync" else handle_async
    app.consume(queue, dlx=True)(handler)

    async def main() -> None:
        serving = asyncio.ensure_future(app.serve())
        await soon("it consumes", lambda: queue in app.stats())
        await app.publish(queue, "a")
        await soon("it is handled", began.is_set)
        serving.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert app.stats()[queue].acked == 1

    asyncio.run(main())


def test_a_handler_on_a_thread_publishes(broker: Broker) -> None:
    queue, bills = broker.queue(), broker.queue("bills")
    app = retryrmq.App(broker.url)
    seen: list[str] = []

    @app.consume(queue, dlx=True)
    def handle(msg: retryrmq.Message) -> None:
        app.blocking.publish(bills, f"bill of {msg.text()}")

    @app.consume(bills, dlx=True)
    async def bill(msg: retryrmq.Message) -> None:
        seen.append(msg.text())

    async def main() -> None:
        async with app:
            await app.publish(queue, "7")
            await soon("the bill is there", lambda: seen == ["bill of 7"])

    asyncio.run(main())


@pytest.mark.parametrize("how", ["left", "stopped", "cancelled"])
def test_a_handler_that_drains_may_still_publish(broker: Broker, how: str) -> None:
    queues = [broker.queue(name) for name in ("async", "sync")]
    to = broker.queue("to")
    app = retryrmq.App(broker.url)
    began: list[str] = []
    draining = threading.Event()

    @app.consume(queues[0], dlx=True, retry="fixed(1s, retries=0)")
    async def on_loop(msg: retryrmq.Message) -> None:
        began.append(msg.text())
        await asyncio.to_thread(draining.wait)
        await app.publish(to, msg.body)

    @app.consume(queues[1], dlx=True, retry="fixed(1s, retries=0)")
    def on_thread(msg: retryrmq.Message) -> None:
        began.append(msg.text())
        draining.wait()
        app.blocking.publish(to, msg.body)

    async def main() -> None:
        async with retryrmq.connect(broker.url) as client, client.consume(to, dlx=True) as consumer:
            serving = asyncio.ensure_future(app.serve() if how != "left" else leave())
            await soon("both are consumed", lambda: len(app._consumers) == 2)
            for queue in queues:
                await client.publish(queue, queue)
            await soon("both have begun", lambda: len(began) == 2)
            if how == "stopped":
                app.stop()
            elif how == "cancelled":
                serving.cancel()
            await soon(
                "it drains",
                lambda: all(it.stats().delivered and it._subscription.is_closing for it in app._stats_consumers),
            )
            draining.set()
            await asyncio.wait({serving}, timeout=60)
            assert [(it.acked, it.failed) for it in app.stats().values()] == [(1, 0), (1, 0)]
            published = set()
            async for msg in consumer:
                await msg.ack()
                published.add(msg.text())
                if len(published) == 2:
                    break
            assert published == set(queues)

    async def leave() -> None:
        async with app:
            await soon("both have begun", lambda: len(began) == 2)

    try:
        asyncio.run(main())
    finally:
        draining.set()
