"""The driver for ``retryrmq.aio_pika`` and ``retryrmq.faststream``: ``driver.py aio-pika`` or ``driver.py faststream``."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from typing import Any

import aio_pika
import retryrmq
from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue
from retryrmq.aio_pika import RetryConsumer
from retryrmq.faststream import CurrentMessage, RetryMiddleware

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python"))
from driver import Hopeless, Script, Tell, say

CAN = [
    "error",
    "error_type",
    "fatal",
    "retry_after",
    "park",
    "defer",
    "panic",
    "exit",
    "rules",
    "declare",
    "queue_type",
    "crash_limit",
    "defer_limit",
    "no_park",
    "wrapped_park",
    "whole_headers",
    "events",
    "refused",
]

#: Scenarios that do not apply, and why.
NO_WIDTHS = "aio-pika does not tell the widths of integers and fractions apart, so a copy has the widest"
NO_RETRIES = "without dlx there is nothing to retry, and the integration is left out"
UNREADABLE = "the connection is that of aio-pika, which cannot read such a message, and the contract has no connection to look for it"
CANNOT = {
    "strategy-*": "the contract for other clients knows the strategy retry-queues",
    "dlx-off*": NO_RETRIES,
    "*-dlx-off": NO_RETRIES,
    "unreadable*": UNREADABLE,
    "hostile": UNREADABLE,
    "forged-counts": "aio-pika cannot read a time after the year 9999, and loses its connection",
    "unicode-names": "aio-pika refuses a queue whose name is not ASCII",
    "header-types": NO_WIDTHS,
    "older-counts": NO_WIDTHS,
    "rules-header": NO_WIDTHS,
}
OF_FASTSTREAM = {
    "missing-queue": "FastStream declares the work queue itself",
    "declare-off-missing": "FastStream looks for the queue itself, and raises its own error",
}


async def play(script: Script, message: retryrmq.Message) -> None:
    name, run, step = script.begin(message)
    await asyncio.sleep(step.get("sleep_ms", 0) / 1000)
    script.end(name, run, step)


async def consume_aio_pika(order: dict[str, Any], options: dict[str, Any], prefetch: int, script: Script) -> None:
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
            await play(script, attempt.message)
        except asyncio.CancelledError:
            attempt.abandon()
            raise
        except BaseException as error:
            await attempt.end(error)
        else:
            await attempt.end()

    async def consume(raw: aio_pika.abc.AbstractIncomingMessage) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await handle(raw)
        finally:
            running.discard(task)

    source = await channel.get_queue(queue)
    tag = await source.consume(consume)
    say("ready")
    await over.wait()
    await source.cancel(tag)
    while running:
        await asyncio.wait(running)
    await connection.close()


async def consume_faststream(order: dict[str, Any], options: dict[str, Any], prefetch: int, script: Script) -> None:
    retries = RetryMiddleware(**options)
    broker = RabbitBroker(
        order["url"],
        middlewares=[retries],
        ack_policy=AckPolicy.MANUAL,
        default_channel=Channel(prefetch_count=prefetch),
        graceful_timeout=30,
        logger=None,  # it writes to standard output
    )

    @broker.subscriber(RabbitQueue(order["queue"], declare=False))
    async def handle(message: CurrentMessage) -> None:
        await play(script, message)

    await FastStream(broker, on_startup=[retries.start], logger=None).run()


def consume(order: dict[str, Any], how: str) -> None:
    options = dict(order["consume"])
    # All messages that are unacknowledged run at the same time.
    prefetch = min(options.pop("prefetch", 64), options.pop("concurrency", 64))
    fatal = (Hopeless,) if options.pop("fatal", True) else ()
    script = Script(order["handler"], order["runs"])
    logging.getLogger("retryrmq").setLevel(logging.DEBUG)
    logging.getLogger("retryrmq").addHandler(Tell())

    def told(event: retryrmq.Event) -> None:
        say("event", kind=event.name, **vars(event))

    run = consume_aio_pika if how == "aio-pika" else consume_faststream
    try:
        asyncio.run(run(order, {"fatal": fatal, "on_event": told, **options}, prefetch, script))
    except retryrmq.RetryRmqError as error:
        say("refused", code=error.code, message=str(error))
    else:
        say("done")


def main() -> None:
    how = sys.argv[1]
    order = json.load(sys.stdin)
    if order["task"] == "describe":
        cannot = CANNOT | (OF_FASTSTREAM if how == "faststream" else {})
        say("driver", name=how, can=CAN, cannot=cannot)
    elif order["task"] == "consume":
        consume(order, how)
    else:
        sys.exit(f"unknown task {order['task']!r}")


if __name__ == "__main__":
    main()
