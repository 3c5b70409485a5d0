"""Every message fails once, waits a second, and succeeds.

The loops are what people write by hand who want to lose nothing: a confirmed copy to a queue with a TTL that dead-letters
back to the work queue, then the acknowledgement. Dramatiq and Celery bring retries of their own; Celery acknowledges late,
because early it would lose what a crash interrupts.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

from measure import BODY, PREFETCH, Case, Meter

#: How the copies are counted by hand.
COUNTED = "x-retries"
#: Of Dramatiq and Celery: what Dramatiq has by itself.
THREADS = 8


def waiting(queue: str) -> str:
    """The queue of the loops by hand, and of retryrmq, in which a message waits a second."""
    return f"{queue}.retry.1000"


def pika_by_hand(url: str, queue: str, count: int) -> None:
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel, publishing = connection.channel(), connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    publishing.confirm_delivery()
    meter = Meter(count)

    def handle(channel, method, properties, body) -> None:
        meter.arrived()
        headers = properties.headers or {}
        done = COUNTED in headers
        if not done:
            properties.headers = {**headers, COUNTED: 1}
            publishing.basic_publish("", waiting(queue), body, properties, mandatory=True)  # raises if not confirmed
        channel.basic_ack(method.delivery_tag)
        if done:
            meter.one()

    channel.basic_consume(queue, handle)
    channel.start_consuming()


def aio_pika_by_hand(url: str, queue: str, count: int) -> None:
    import aio_pika

    async def main() -> None:
        connection = await aio_pika.connect_robust(url)
        channel = await connection.channel()
        publishing = await connection.channel(publisher_confirms=True, on_return_raises=True)
        await channel.set_qos(prefetch_count=PREFETCH)
        work = await channel.get_queue(queue)
        meter = Meter(count)

        async def handle(message) -> None:
            meter.arrived()
            done = COUNTED in message.headers
            if not done:
                copy = aio_pika.Message(
                    message.body, headers={**message.headers, COUNTED: 1}, delivery_mode=message.delivery_mode
                )
                await publishing.default_exchange.publish(copy, waiting(queue))
            await message.ack()
            if done:
                meter.one()

        await work.consume(handle)
        await asyncio.Future()

    asyncio.run(main())


def _dramatiq(url: str, queue: str):
    os.environ["dramatiq_queue_prefetch"] = str(PREFETCH)  # noqa: SIM112 - its name
    import dramatiq
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    broker = RabbitmqBroker(url=url)
    dramatiq.set_broker(broker)
    meter: list[Meter] = []
    counting = threading.Lock()

    @dramatiq.actor(queue_name=queue, max_retries=5)
    def work(body: str) -> None:
        meter[0].arrived()
        message = dramatiq.middleware.CurrentMessage.get_current_message()
        if not message.options.get("retries"):
            raise dramatiq.errors.Retry("the first time", delay=1000)
        with counting:
            meter[0].one()

    if not any(isinstance(it, dramatiq.middleware.CurrentMessage) for it in broker.middleware):
        broker.add_middleware(dramatiq.middleware.CurrentMessage())
    return broker, work, meter


def dramatiq(url: str, queue: str, count: int) -> None:
    from dramatiq import Worker

    broker, _, meter = _dramatiq(url, queue)
    meter.append(Meter(count))
    Worker(broker, worker_threads=THREADS).start()
    threading.Event().wait()


def fill_dramatiq(url: str, queue: str, count: int) -> None:
    _, work, _ = _dramatiq(url, queue)
    for _ in range(count):
        work.send(BODY.decode())


def _celery(url: str, queue: str):
    from celery import Celery

    app = Celery(broker=url.replace("amqp://", "pyamqp://", 1))
    app.conf.update(
        broker_connection_retry_on_startup=True,
        task_acks_late=True,
        task_default_queue=queue,
        task_ignore_result=True,
        worker_hijack_root_logger=False,
        worker_prefetch_multiplier=PREFETCH // THREADS,
        worker_redirect_stdouts=False,
    )
    meter: list[Meter] = []
    counting = threading.Lock()

    @app.task(bind=True, max_retries=5, name="work")
    def work(self, body: str) -> None:
        meter[0].arrived()
        if self.request.retries == 0:
            raise self.retry(countdown=1)
        with counting:
            meter[0].one()

    return app, work, meter


def celery(url: str, queue: str, count: int) -> None:
    app, _, meter = _celery(url, queue)
    meter.append(Meter(count))
    # Threads of this process, so that its figures are this process's, and as many as Dramatiq has. Its pool `solo` mostly
    # stalls for seconds at a time with delayed tasks.
    app.Worker(
        pool="threads", concurrency=THREADS, loglevel="CRITICAL", quiet=True, without_gossip=True, without_mingle=True
    ).start()


def fill_celery(url: str, queue: str, count: int) -> None:
    app, work, _ = _celery(url, queue)
    with app.producer_pool.acquire() as producer:
        for _ in range(count):
            work.apply_async((BODY.decode(),), producer=producer)


def retryrmq_sync(url: str, queue: str, count: int) -> None:
    import retryrmq

    client = retryrmq.connect_blocking(url)
    meter = Meter(count)

    def handle(message) -> None:
        meter.arrived()
        if message.attempt == 1:
            raise RuntimeError("the first time")
        meter.one()

    client.consume(queue, handle, dlx=True, retry="fixed(1s)", prefetch=PREFETCH).start()
    threading.Event().wait()


def retryrmq_async(url: str, queue: str, count: int) -> None:
    import retryrmq

    async def main() -> None:
        client = await retryrmq.connect(url)
        meter = Meter(count)

        async def handle(message) -> None:
            meter.arrived()
            if message.attempt == 1:
                raise RuntimeError("the first time")
            meter.one()

        await client.consume(queue, handle, dlx=True, retry="fixed(1s)", prefetch=PREFETCH).run()

    asyncio.run(main())


CASES: dict[str, Case] = {
    "pika loop": pika_by_hand,
    "aio-pika loop": aio_pika_by_hand,
    "Dramatiq": dramatiq,
    "Celery": celery,
    "retryrmq sync": retryrmq_sync,
    "retryrmq async": retryrmq_async,
}
#: Those with queues and messages of their own, and how these are filled.
FILLS: dict[str, Callable[[str, str, int], None]] = {"Dramatiq": fill_dramatiq, "Celery": fill_celery}
