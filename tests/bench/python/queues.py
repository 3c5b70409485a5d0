"""The queues of one measurement: made and filled before it, gone after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import pika
import retryrmq
from measure import BODY
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker
from pika.spec import Queue

Kind = Literal["classic", "quorum"]
#: What hangs from a work queue, by whoever made it: retryrmq, Dramatiq.
DELAYS = (100, 1_000, 2_000, 4_000, 8_000, 16_000, 64_000, 256_000, 3_600_000)
HANGING = ["", ".parked", *(f".retry.{ms}" for ms in DELAYS), ".DQ", ".XQ"]
#: A waiting queue is no safe place before it is older than two seconds, and a consumer does not know how old one is that it
#: finds: retryrmq holds originals that long once, and by hand nobody would know.
YOUNG = 3.0


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

    def make(self, queue: str, kind: Kind, *, retry: str | None, native: bool) -> None:
        """The work queue with what retryrmq needs around it, so that nobody has to make it within a measurement.

        ``retry``: the policy by which messages will wait; ``native``: in the work queue itself, by RabbitMQ 4.3's delayed retry.
        """
        options: retryrmq.ConsumerOptions = {"dlx": True}
        if retry:
            options["retry"] = retry
        if native:
            options["strategy"] = "native"
        else:
            with self._channel() as channel:
                channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
        with retryrmq.connect_blocking(self.url) as client, client.consume(queue, _nothing, **options):
            pass

    def publish(self, queue: str, count: int) -> None:
        with self._channel() as channel:
            for n in range(count):
                channel.basic_publish("", queue, BODY, pika.BasicProperties(delivery_mode=2, message_id=str(n)))

    def fill(self, queue: str, count: int) -> None:
        """Returns when ``count`` messages are stored."""
        self.publish(queue, count)
        self.wait_for_messages(queue, count)

    def wait_for_messages(self, queue: str, count: int) -> None:
        """Returns when so many are stored."""
        self._poll(queue, lambda found: found.message_count == count, f"{count} messages")

    def wait_for_consumer(self, queue: str) -> None:
        """Returns when somebody consumes from the queue, and what hangs from it is a safe place."""
        self._poll(queue, lambda found: found.consumer_count > 0, "a consumer")
        time.sleep(YOUNG)

    def ready(self, queue: str) -> dict[str, int]:
        """How many messages no client holds, by what hangs from the queue; ``""`` is the queue itself."""
        return {hanging: found.message_count for hanging in HANGING if (found := self._look(queue + hanging))}

    def _poll(self, queue: str, is_so: Callable[[Queue.DeclareOk], bool], what: str) -> None:
        deadline = time.monotonic() + 120
        while not ((found := self._look(queue)) and is_so(found)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{queue} did not get {what}")
            time.sleep(0.05)

    def _look(self, queue: str) -> Queue.DeclareOk | None:
        """``None``: there is no such queue yet; some peers make theirs themselves."""
        with self._channel() as channel, suppress(ChannelClosedByBroker):
            return channel.queue_declare(queue, passive=True).method
        return None

    def delete(self, queue: str) -> None:
        with self._channel() as channel:
            for hanging in HANGING:
                channel.queue_delete(queue + hanging)


def _nothing(message: retryrmq.Message) -> None:
    """Never called: the queue is empty."""
