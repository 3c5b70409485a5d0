"""Plain records: the counters of a consumer, and the entries of a message's history."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class HistoryEntry:
    """One failed attempt of a message."""

    #: The number of the attempt; 1 is the first delivery.
    attempt: int
    #: When it failed, in whole seconds, in UTC.
    at: datetime
    #: The error, one line.
    error: str
    #: The host name of the consumer.
    host: str
    #: The version of the consuming application, as given to ``connect`` or ``App``; empty if it was not.
    app_version: str


@dataclass(frozen=True)
class Stats:
    """The counters of a queue since its client was made. All consumers of the queue on that client share them."""

    #: Messages delivered to the consumer.
    delivered: int
    #: Messages handled and acknowledged.
    acked: int
    #: Attempts that failed.
    failed: int
    #: Messages sent to wait for another attempt.
    retried: int
    #: Messages that a handler deferred.
    deferred: int
    #: Messages parked.
    parked: int
    #: Failed messages handed over to the service, whose policy decides.
    handed_over: int
    #: Failed messages rejected without requeue, because ``dlx`` is off.
    rejected: int
    #: Messages redelivered because their consumer never settled them, or too early with `native`; a copy waits, so that no crash is missed and no delay is skipped.
    detoured: int
    #: Redeliveries of handled messages, acknowledged and not handled again.
    already_handled: int
    #: Messages requeued.
    requeued: int
    #: Messages moved to ``<queue>.unreadable``, because RabbitMQ cannot deliver them over AMQP 0-9-1.
    unreadable: int
    #: Settlements without effect, because the message was already settled or belongs to a lost connection.
    stale: int
    #: Copies that could not be stored at once.
    publish_failures: int
    #: How often the consumer consumed again after a lost connection or channel.
    reconnects: int
    #: How often the consumer paused because too many attempts failed.
    pauses: int
    #: Messages delivered and not settled yet.
    outstanding: int
