"""The queues of one measurement: made and filled before it, gone after it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pika
import retryrmq
from measure import BODY
from pika.adapters.blocking_connection import BlockingChannel

Kind = Literal["classic", "quorum"]
#: What hangs from a work queue, by whoever made it: retryrmq, Dramatiq.
HANGING = ["", ".parked", *(f".retry.{ms}" for ms in (1_000, 4_000, 16_000, 64_000, 256_000)), ".DQ", ".XQ"]
#: Not a safe place before this age: retryrmq holds originals that long, and by hand nobody would know.
YOUNG = 2.5


class Broker:
    """The broker of all measurements."""

    def __init__(self, url: str) -> None:
        self.url = url

    @contextmanager
    def _channel(self) -> Iterator[BlockingChannel]:
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            yield connection.channel()
        finally:
            connection.close()

    def version(self) -> str:
        with retryrmq.connect_blocking(self.url) as client:
            return client.server["version"]

    def make(self, queue: str, kind: Kind, *, waiting: bool) -> None:
        """The work queue with what retryrmq needs around it, so that nobody has to make it within a measurement.

        ``waiting``: messages will wait a second each.
        """
        with self._channel() as channel:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
        options: retryrmq.ConsumerOptions = {"dlx": True}
        if waiting:
            options["retry"] = "fixed(1s)"
        with retryrmq.connect_blocking(self.url) as client, client.consume(queue, _nothing, **options):
            pass
        if waiting:
            time.sleep(YOUNG)

    def fill(self, queue: str, count: int) -> None:
        """Returns when ``count`` messages are stored."""
        with self._channel() as channel:
            for _ in range(count):
                channel.basic_publish("", queue, BODY, pika.BasicProperties(delivery_mode=2))
        self.wait_for(queue, count)

    def wait_for(self, queue: str, count: int) -> None:
        """Returns when the queue has all ``count`` messages."""
        deadline = time.monotonic() + 120
        with self._channel() as channel:
            while (found := channel.queue_declare(queue, passive=True).method.message_count) != count:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{queue} has {found} messages, not {count}")
                time.sleep(0.05)

    def delete(self, queue: str) -> None:
        with self._channel() as channel:
            for hanging in HANGING:
                channel.queue_delete(queue + hanging)


def _nothing(message: retryrmq.Message) -> None:
    """Never called: the queue is empty."""
