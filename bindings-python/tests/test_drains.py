"""Handlers that still run when their consumer closes, and closing from within."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest
import retryrmq
from conftest import PATIENCE, Broker, soon


@pytest.mark.parametrize("how", ["slow", "settled", "stubborn"])
def test_draining_ends_at_its_timeout(broker: Broker, caplog: pytest.LogCaptureFixture, how: str) -> None:
    queue = broker.queue()
    caplog.set_level(logging.INFO, "retryrmq")
    began = asyncio.Event()
    ended: list[str] = []

    def said() -> list[str]:
        own = [it for it in caplog.records if queue in it.getMessage()]  # another test's client may still log
        return [it.levelname for it in own if re.search("handlers (still|that|would)", it.getMessage())]

    async def main() -> None:
        release = asyncio.Event()
        async with retryrmq.connect(broker.url) as client:

            async def handle(msg: retryrmq.Message) -> None:
                if how == "settled":
                    await msg.ack()
                began.set()
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    ended.append("cancelled")
                    if how != "stubborn":
                        raise
                    await release.wait()

            consumer = client.consume(queue, handle, dlx=True, drain_timeout="300ms")
            await consumer.start()
            await client.publish(queue, "a")
            await asyncio.wait_for(began.wait(), PATIENCE)
            await asyncio.wait_for(consumer.close(), PATIENCE)
            release.set()
            await soon("its end", lambda: ended == ["cancelled"])
            # The core warns of the message, if it is not settled; only Python knows what becomes of the handler.
            levels = {"settled": ["WARNING"], "slow": ["INFO", "WARNING"], "stubborn": ["ERROR", "INFO", "WARNING"]}
            await soon("all is logged", lambda: len(said()) == len(levels[how]))
            assert sorted(said()) == levels[how]
            if how == "settled":
                await client.publish(queue, "a")
            async with client.consume(queue, dlx=True) as again:
                async for msg in again:
                    assert msg.text() == "a"
                    await msg.ack()
                    break

    asyncio.run(main())


def test_a_handler_may_close_its_own_consumer(broker: Broker) -> None:
    queue = broker.queue()
    closed: list[bool] = []

    async def main() -> None:
        async with retryrmq.connect(broker.url) as client:

            async def handle(msg: retryrmq.Message) -> None:
                await consumer.close()
                closed.append(True)

            consumer = client.consume(queue, handle, dlx=True, drain_timeout="10m")
            await consumer.start()
            await client.publish(queue, "a")
            await asyncio.wait_for(consumer.run(), PATIENCE)  # the drain alone would take longer
            assert closed and consumer.stats().acked == 1

    asyncio.run(main())


@pytest.mark.parametrize("how", ["a task", "a time limit", "a thread"])
def test_a_task_of_a_handler_may_close_its_consumer(broker: Broker, how: str) -> None:
    queue = broker.queue()
    closed: list[bool] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with retryrmq.connect(broker.url) as client:

            async def handle(msg: retryrmq.Message) -> None:
                if how == "a task":
                    await asyncio.create_task(consumer.close())
                else:
                    await asyncio.wait_for(consumer.close(), 3600)
                closed.append(True)

            def on_thread(msg: retryrmq.Message) -> None:
                asyncio.run_coroutine_threadsafe(consumer.close(), loop).result()
                closed.append(True)

            options: Any = {"dlx": True, "drain_timeout": "10m"}
            consumer = client.consume(queue, on_thread if how == "a thread" else handle, **options)
            await consumer.start()
            await client.publish(queue, "a")
            await asyncio.wait_for(consumer.run(), 60)
            assert closed and consumer.stats().acked == 1

    asyncio.run(main())


def test_a_task_that_outlives_its_handler_waits_for_the_others(broker: Broker) -> None:
    queue = broker.queue()
    ended: list[str] = []

    async def main() -> None:
        go_on, began = asyncio.Event(), asyncio.Event()
        tasks: list[asyncio.Task[None]] = []
        async with retryrmq.connect(broker.url) as client:

            async def end() -> None:
                await began.wait()
                asyncio.get_running_loop().call_soon(go_on.set)
                await consumer.close()
                ended.append("close")

            async def handle(msg: retryrmq.Message) -> None:
                if msg.text() == "first":
                    tasks.append(asyncio.create_task(end()))
                    return
                began.set()
                await go_on.wait()
                await asyncio.sleep(0.1)
                ended.append("handler")

            consumer = client.consume(queue, handle, dlx=True, concurrency=1)
            await consumer.start()
            for body in ("first", "second"):
                await client.publish(queue, body)
            await soon("it closes", lambda: tasks)
            await asyncio.wait_for(tasks[0], 60)
            assert ended == ["handler", "close"] and consumer.stats().acked == 2

    asyncio.run(main())


def test_a_drain_waits_for_a_handler_that_settled_already(broker: Broker) -> None:
    queue = broker.queue()
    began = asyncio.Event()
    ended: list[str] = []

    async def handle(msg: retryrmq.Message) -> None:
        await msg.ack()
        began.set()
        await asyncio.sleep(0.5)
        ended.append(msg.text())

    async def main() -> None:
        async with retryrmq.connect(broker.url) as client:
            async with client.consume(queue, handle, dlx=True):
                await client.publish(queue, "a")
                await began.wait()
            assert ended == ["a"]

    asyncio.run(main())
