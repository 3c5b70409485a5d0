"""Retries in a program that consumes with aio-pika."""

import asyncio
import os

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from retryrmq.aio_pika import RetryConsumer


async def main() -> None:
    handled = asyncio.Event()

    async def handle(message: AbstractIncomingMessage) -> None:
        print(f"{message.body.decode()}, retries so far: {message.headers.get('x-retry-count', 0)!r}", flush=True)
        if "x-retry-count" not in message.headers:
            raise ConnectionError("the till is closed")
        handled.set()

    retries = RetryConsumer("example.aio_pika", dlx=True, retry="fixed(200ms, retries=3)")
    connection = await aio_pika.connect_robust(os.environ.get("RETRYRMQ_URL", "amqp://localhost"))
    async with connection:
        await retries.start(connection)  # checks and declares
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=64)
        queue = await channel.get_queue("example.aio_pika")
        tag = await queue.consume(retries.around(handle))
        await channel.default_exchange.publish(aio_pika.Message(b"order 7"), "example.aio_pika")
        await handled.wait()
        await queue.cancel(tag)


asyncio.run(main())
