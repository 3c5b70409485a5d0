"""Consumes with ``retryrmq.aio_pika``."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import retryrmq
from driver import say
from retryrmq.aio_pika import RetryConsumer

Play = Callable[[retryrmq.Message], Awaitable[None]]


async def consume(order: dict[str, Any], options: dict[str, Any], prefetch: int, play: Play) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    queue = order["queue"]
    retries = RetryConsumer(queue, **options)
    connection = await aio_pika.connect_robust(order["url"])
    await retries.start(connection)
    channel = await connection.channel()
    await channel.set_qos(prefetch)
    running: set[asyncio.Task[Any]] = set()

    async def handle(raw: aio_pika.abc.AbstractIncomingMessage) -> None:
        attempt = await retries.begin(raw)
        if attempt is None:
            return
        try:
            await play(attempt.message)
        except asyncio.CancelledError:
            attempt.abandon()
            raise
        except BaseException as error:
            await attempt.end(error)
        else:
            await attempt.end()

    async def begin(raw: aio_pika.abc.AbstractIncomingMessage) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await handle(raw)
        finally:
            running.discard(task)

    source = await channel.get_queue(queue)
    tag = await source.consume(begin)
    say("ready")
    await over.wait()
    await source.cancel(tag)
    while running:
        await asyncio.wait(running)
    await connection.close()
