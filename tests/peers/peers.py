"""Who is asked: each peer is a folder with a worker, in the setting that its own documentation recommends for what must not be lost."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """What the questions have to know of a peer."""

    folder: str
    title: str
    #: How many handlers run at a time.
    concurrency: int = 1
    #: The queues in which it lets messages wait, as a regular expression; none: they wait elsewhere, or not at all.
    waiting: str | None = None
    #: Its worker publishes, because its messages have a form of their own.
    sends: bool = False
    #: The exchange and binding key by which its messages come; none: there is no exchange but
    #: the default one.
    exchange: tuple[str, str] | None = ("events", "order.#")
    #: The pattern of NestJS's messages.
    pattern: str | None = None

    @property
    def program(self) -> str:
        return "worker.mjs" if self.folder in NODE else "worker.py"

    def body(self, order: dict[str, object]) -> bytes:
        return json.dumps({"pattern": self.pattern, "data": order} if self.pattern else order).encode()


NODE = {"requeue-amqplib", "rascal", "nestjs", "retryrmq-node"}
PEERS = {
    peer.folder: peer
    for peer in (
        Peer("requeue-pika", "requeue loop (pika)"),
        Peer("requeue-amqplib", "requeue loop (amqplib)", concurrency=5),
        Peer("ttl-pika", "TTL and dead-letter loop by hand (pika)", waiting=r"^work\.retry$"),
        Peer("delayed-retry", "RabbitMQ 4.3's delayed retry (pika)"),
        Peer("celery-defaults", "Celery, as it comes", sends=True, exchange=("work", "work")),
        Peer("celery", "Celery, durable", sends=True, exchange=("work", "#"), waiting=r"^celery_delayed_\d+$"),
        Peer(
            "celery-retryrmq",
            "Celery, with retryrmq",
            sends=True,
            exchange=("work", "work"),
            waiting=r"^work\.retry\.\d+$",
        ),
        Peer("dramatiq", "Dramatiq", sends=True, exchange=None, waiting=r"^work\.DQ$"),
        Peer("rascal", "Rascal, republish", concurrency=5),
        Peer("nestjs", "NestJS microservice", concurrency=5, pattern="order"),
        Peer("retryrmq-python", "retryrmq, Python", waiting=r"^work\.retry\.\d+$"),
        Peer("retryrmq-node", "retryrmq, Node", concurrency=5, waiting=r"^work\.retry\.\d+$"),
    )
}
