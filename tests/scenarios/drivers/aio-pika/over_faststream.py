"""Consumes with ``retryrmq.faststream``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import retryrmq
from driver import say
from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue
from retryrmq.faststream import CurrentMessage, RetryMiddleware

Play = Callable[[retryrmq.Message], Awaitable[None]]


async def consume(order: dict[str, Any], options: dict[str, Any], prefetch: int, play: Play) -> None:
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
        await play(message)

    async def ready() -> None:
        say("ready")

    await FastStream(broker, on_startup=[retries.start], after_startup=[ready], logger=None).run()
