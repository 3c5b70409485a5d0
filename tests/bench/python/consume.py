"""Consume and acknowledge a full queue with a handler that does nothing, as each client's own documentation does it."""

from __future__ import annotations

import asyncio
import threading

from measure import PREFETCH, Case, Meter


def pika_blocking(url: str, queue: str, count: int) -> None:
    import pika

    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    meter = Meter(count)

    def handle(channel, method, properties, body) -> None:
        channel.basic_ack(method.delivery_tag)
        meter.one()

    channel.basic_consume(queue, handle)
    channel.start_consuming()


def pika_select(url: str, queue: str, count: int) -> None:
    import pika

    meter: Meter

    def handle(channel, method, properties, body) -> None:
        channel.basic_ack(method.delivery_tag)
        meter.one()

    def ready(channel) -> None:
        nonlocal meter
        meter = Meter(count)
        channel.basic_consume(queue, handle)

    def opened(channel) -> None:
        channel.basic_qos(prefetch_count=PREFETCH, callback=lambda _: ready(channel))

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
        meter = Meter(count)

        async def handle(message) -> None:
            await message.ack()
            meter.one()

        await work.consume(handle)
        await asyncio.Future()

    asyncio.run(main())


def kombu(url: str, queue: str, count: int) -> None:
    from kombu import Connection, Consumer, Queue

    with Connection(url.replace("amqp://", "pyamqp://", 1)) as connection:
        channel = connection.channel()
        meter = Meter(count)

        def handle(message) -> None:
            message.ack()
            meter.one()

        work = Queue(queue, no_declare=True)
        with Consumer(channel, [work], on_message=handle, prefetch_count=PREFETCH):
            while True:
                connection.drain_events()


def retryrmq_sync(url: str, queue: str, count: int) -> None:
    import retryrmq

    client = retryrmq.connect_blocking(url)
    meter = Meter(count)

    def handle(message) -> None:
        meter.one()

    client.consume(queue, handle, dlx=True, prefetch=PREFETCH).start()
    threading.Event().wait()


def retryrmq_async(url: str, queue: str, count: int) -> None:
    import retryrmq

    async def main() -> None:
        client = await retryrmq.connect(url)
        meter = Meter(count)

        async def handle(message) -> None:
            meter.one()

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
