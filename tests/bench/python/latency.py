"""How long one message is under way, from a publisher in a process of its own to the handler, at 100 messages a second."""

from __future__ import annotations

import asyncio
import threading
import time

from measure import BODY, PREFETCH, Case, Lateness

PER_SECOND = 100


def publisher(url: str, queue: str, count: int) -> None:
    """Begins when somebody consumes, and keeps to the clock."""
    import pika

    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    while not channel.queue_declare(queue, passive=True).method.consumer_count:
        time.sleep(0.02)
    began = time.monotonic()
    for n in range(count):
        time.sleep(max(0.0, began + n / PER_SECOND - time.monotonic()))
        body = b"%d " % time.monotonic_ns()
        channel.basic_publish("", queue, body.ljust(len(BODY), b"x"), pika.BasicProperties(delivery_mode=2))
    channel.connection.close()


def pika_blocking(url: str, queue: str, count: int) -> None:
    import pika

    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    lateness = Lateness(count)

    def handle(channel, method, properties, body) -> None:
        lateness.one(body)
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(queue, handle)
    channel.start_consuming()


def pika_select(url: str, queue: str, count: int) -> None:
    import pika

    lateness = Lateness(count)

    def handle(channel, method, properties, body) -> None:
        lateness.one(body)
        channel.basic_ack(method.delivery_tag)

    def opened(channel) -> None:
        channel.basic_qos(prefetch_count=PREFETCH, callback=lambda _: channel.basic_consume(queue, handle))

    connection = pika.SelectConnection(
        pika.URLParameters(url), on_open_callback=lambda connection: connection.channel(on_open_callback=opened)
    )
    connection.ioloop.start()


def aio_pika(url: str, queue: str, count: int) -> None:
    import aio_pika

    async def main() -> None:
        connection = await aio_pika.connect_robust(url)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        work = await channel.get_queue(queue)
        lateness = Lateness(count)

        async def handle(message) -> None:
            lateness.one(message.body)
            await message.ack()

        await work.consume(handle)
        await asyncio.Future()

    asyncio.run(main())


def kombu(url: str, queue: str, count: int) -> None:
    from kombu import Connection, Consumer, Queue

    with Connection(url.replace("amqp://", "pyamqp://", 1)) as connection:
        lateness = Lateness(count)

        def handle(message) -> None:
            body = message.body
            lateness.one(body if isinstance(body, bytes) else body.encode())
            message.ack()

        work = Queue(queue, no_declare=True)
        with Consumer(connection.channel(), [work], on_message=handle, prefetch_count=PREFETCH):
            while True:
                connection.drain_events()


def retryrmq_sync(url: str, queue: str, count: int) -> None:
    import retryrmq

    client = retryrmq.connect_blocking(url)
    lateness = Lateness(count)

    def handle(message) -> None:
        lateness.one(message.body)

    client.consume(queue, handle, dlx=True, prefetch=PREFETCH).start()
    threading.Event().wait()


def retryrmq_async(url: str, queue: str, count: int) -> None:
    import retryrmq

    async def main() -> None:
        client = await retryrmq.connect(url)
        lateness = Lateness(count)

        async def handle(message) -> None:
            lateness.one(message.body)

        await client.consume(queue, handle, dlx=True, prefetch=PREFETCH).run()

    asyncio.run(main())


CASES: dict[str, Case] = {
    "pika Blocking": pika_blocking,
    "pika Select": pika_select,
    "aio-pika": aio_pika,
    "kombu": kombu,
    "retryrmq sync": retryrmq_sync,
    "retryrmq async": retryrmq_async,
}
