"""Everything in a queue fails at once, five times each, a second between two attempts: what a broken dependency leaves behind.

And the outage itself. Beside the loops by hand there are two that publish no copies: RabbitMQ 4.3's own delayed retry, and the
loop that gives a message back at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from load import Failing, Load, NotYetError, Outage, attempt
from retry import LOOPS, Loop, asked, pika_by_hand, retryrmq_sync

FAILURES = 5
OUTSTANDING = 1_000


def _without_copies(url: str, queue: str, load: Load, failed: Callable[[Any], int], give_back: str) -> None:
    """Gives back what fails, and acknowledges what does not. ``failed`` is told the properties of a message."""
    import pika

    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.basic_qos(prefetch_count=load.outstanding)

    def handle(channel, method, properties, body) -> None:
        try:
            attempt(load, failed(properties))
        except NotYetError:
            getattr(channel, give_back)(method.delivery_tag, requeue=True)
        else:
            channel.basic_ack(method.delivery_tag)

    channel.basic_consume(queue, handle)
    channel.start_consuming()


def pika_delayed_retry(url: str, queue: str, load: Load) -> None:
    """The client only rejects; the queue keeps the message for a second and counts."""

    def failed(properties) -> int:
        return (properties.headers or {}).get("x-delivery-count", 0)

    _without_copies(url, queue, load, failed, "basic_reject")


def pika_requeue(url: str, queue: str, load: Load) -> None:
    """Given back at once; how often a message has failed is known to this process alone."""
    failures: Counter[str] = Counter()

    def failed(properties) -> int:
        failures[properties.message_id] += 1
        return failures[properties.message_id] - 1

    _without_copies(url, queue, load, failed, "basic_nack")


def pika_requeue_without_a_count(url: str, queue: str, load: Load) -> None:
    _without_copies(url, queue, load, lambda properties: 0, "basic_nack")


#: Those on a queue that delays what is rejected, as the strategy `native` makes it.
NATIVE = {"pika delayed retry", "retryrmq sync, native"}
#: What brings messages of its own and is slow with many of them gets this share.
FEWER = {"Dramatiq": 10, "Celery": 10}

STORM: dict[str, Loop] = {
    "pika requeue": pika_requeue,
    "pika delayed retry": pika_delayed_retry,
    **LOOPS,
    "retryrmq sync, native": partial(retryrmq_sync, strategy="native"),
}
OUTAGE: dict[str, Loop] = {
    "pika requeue": pika_requeue_without_a_count,
    "pika loop": pika_by_hand,
    "retryrmq sync": retryrmq_sync,
    "retryrmq sync, pause": partial(retryrmq_sync, pause=True),
}

CASES = asked(STORM, partial(Failing, failures=FAILURES, outstanding=OUTSTANDING))
OUTAGE_CASES = asked(OUTAGE, Outage)
