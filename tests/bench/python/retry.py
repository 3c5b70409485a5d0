"""Every message fails once or more often, waits a second each time, and succeeds.

The loops are what people write by hand who want to lose nothing: a confirmed copy to a queue with a TTL that dead-letters
back to the work queue, then the acknowledgement. Dramatiq and Celery bring retries of their own; Celery acknowledges late,
because early it would lose what a crash interrupts.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

from load import Failing, Load, NotYetError, attempt
from measure import BODY, Case

#: How the copies are counted by hand.
COUNTED = "x-retries"
#: Of Dramatiq and Celery: what Dramatiq has by itself.
THREADS = 8
#: A measured program, with what it is to be asked.
Loop = Callable[[str, str, Any], None]


def asked(loops: dict[str, Loop], load: Callable[[int], Load]) -> dict[str, Case]:
    """The measured programs, each with a load of its own."""

    def case(loop: Loop) -> Case:
        return lambda url, queue, count: loop(url, queue, load(count))

    return {name: case(loop) for name, loop in loops.items()}


def pika_by_hand(url: str, queue: str, load: Load) -> None:
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel, publishing = connection.channel(), connection.channel()
    channel.basic_qos(prefetch_count=load.outstanding)
    publishing.confirm_delivery()

    def handle(channel, method, properties, body) -> None:
        failed = (properties.headers or {}).get(COUNTED, 0)
        try:
            attempt(load, failed)
        except NotYetError:
            properties.headers = {COUNTED: failed + 1}
            place = load.place(queue, failed)
            publishing.basic_publish("", place, body, properties, mandatory=True)  # raises if not confirmed
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(queue, handle)
    channel.start_consuming()


def aio_pika_by_hand(url: str, queue: str, load: Load) -> None:
    import aio_pika

    async def main() -> None:
        connection = await aio_pika.connect_robust(url)
        channel = await connection.channel()
        publishing = await connection.channel(publisher_confirms=True, on_return_raises=True)
        await channel.set_qos(prefetch_count=load.outstanding)
        work = await channel.get_queue(queue)

        async def handle(message) -> None:
            failed = message.headers.get(COUNTED, 0)
            try:
                attempt(load, failed)
            except NotYetError:
                copy = aio_pika.Message(
                    message.body, headers={COUNTED: failed + 1}, delivery_mode=message.delivery_mode
                )
                await publishing.default_exchange.publish(copy, load.place(queue, failed))
            await message.ack()

        await work.consume(handle)
        await asyncio.Future()

    asyncio.run(main())


def _dramatiq(url: str, queue: str, load: Failing):
    os.environ["dramatiq_queue_prefetch"] = str(load.outstanding)  # noqa: SIM112 - its name
    import dramatiq
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    broker = RabbitmqBroker(url=url)
    dramatiq.set_broker(broker)
    counting = threading.Lock()

    @dramatiq.actor(queue_name=queue, max_retries=5)
    def work(body: str) -> None:
        message = dramatiq.middleware.CurrentMessage.get_current_message()
        if load.fails(message.options.get("retries", 0)):
            raise dramatiq.errors.Retry("not yet", delay=load.delay * 1000)
        with counting:
            load.done()

    if not any(isinstance(it, dramatiq.middleware.CurrentMessage) for it in broker.middleware):
        broker.add_middleware(dramatiq.middleware.CurrentMessage())
    return broker, work


def dramatiq(url: str, queue: str, load: Failing) -> None:
    from dramatiq import Worker

    broker, _ = _dramatiq(url, queue, load)
    Worker(broker, worker_threads=THREADS).start()
    threading.Event().wait()


def fill_dramatiq(url: str, queue: str, count: int) -> None:
    _, work = _dramatiq(url, queue, Failing(count))
    for _ in range(count):
        work.send(BODY.decode())


def _celery(url: str, queue: str, load: Failing):
    from celery import Celery

    app = Celery(broker=url.replace("amqp://", "pyamqp://", 1))
    app.conf.update(
        broker_connection_retry_on_startup=True,
        task_acks_late=True,
        task_default_queue=queue,
        task_ignore_result=True,
        worker_hijack_root_logger=False,
        worker_prefetch_multiplier=max(load.outstanding // THREADS, 1),
        worker_redirect_stdouts=False,
    )
    counting = threading.Lock()

    @app.task(bind=True, max_retries=5, name="work")
    def work(self, body: str) -> None:
        if load.fails(self.request.retries):
            raise self.retry(countdown=load.delay)
        with counting:
            load.done()

    return app, work


def celery(url: str, queue: str, load: Failing) -> None:
    app, _ = _celery(url, queue, load)
    # Threads of this process, so that its figures are this process's, and as many as Dramatiq has. Its pool `solo` mostly
    # stalls for seconds at a time with delayed tasks.
    app.Worker(
        pool="threads", concurrency=THREADS, loglevel="CRITICAL", quiet=True, without_gossip=True, without_mingle=True
    ).start()


def fill_celery(url: str, queue: str, count: int) -> None:
    app, work = _celery(url, queue, Failing(count))
    with app.producer_pool.acquire() as producer:
        for _ in range(count):
            work.apply_async((BODY.decode(),), producer=producer)


def retryrmq_sync(url: str, queue: str, load: Load, **options: Any) -> None:
    import retryrmq

    client = retryrmq.connect_blocking(url)

    def handle(message) -> None:
        attempt(load, message.attempt - 1)

    client.consume(queue, handle, dlx=True, retry=load.retry, prefetch=load.outstanding, **options).start()
    threading.Event().wait()


def retryrmq_async(url: str, queue: str, load: Load) -> None:
    import retryrmq

    async def main() -> None:
        client = await retryrmq.connect(url)

        async def handle(message) -> None:
            attempt(load, message.attempt - 1)

        await client.consume(queue, handle, dlx=True, retry=load.retry, prefetch=load.outstanding).run()

    asyncio.run(main())


LOOPS: dict[str, Loop] = {
    "pika loop": pika_by_hand,
    "aio-pika loop": aio_pika_by_hand,
    "Dramatiq": dramatiq,
    "Celery": celery,
    "retryrmq sync": retryrmq_sync,
    "retryrmq async": retryrmq_async,
}
CASES = asked(LOOPS, Failing)
#: Those with queues and messages of their own, and how these are filled.
FILLS: dict[str, Callable[[str, str, int], None]] = {"Dramatiq": fill_dramatiq, "Celery": fill_celery}
