"""Plain records: numbers of a consumer, entries of a message's history."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class HistoryEntry:
    """One failed attempt of a message."""

    #: 1 is the first delivery.
    attempt: int
    #: To the second, in UTC.
    at: datetime
    #: What went wrong, one line.
    error: str
    #: The machine it was on.
    host: str
    #: The version of the application, if it told.
    app_version: str


@dataclass(frozen=True)
class Stats:
    """The numbers of a queue's consumers since their client was made."""

    #: Messages delivered to the consumer.
    delivered: int
    #: Messages handled and acknowledged.
    acked: int
    #: Attempts that failed.
    failed: int
    #: Messages sent to wait for another attempt.
    retried: int
    #: Messages deferred by their handler.
    deferred: int
    #: Messages parked.
    parked: int
    #: Failed messages handed over to the service, whose policy decides.
    handed_over: int
    #: Messages rejected because the consumer has no retries.
    rejected: int
    #: Messages that were with a consumer when it went away, sent on a counted detour.
    detoured: int
    #: Redeliveries of handled messages, acknowledged without running them again.
    already_handled: int
    #: Messages given back to their queue.
    requeued: int
    #: Settlements of messages that were already settled or belong to a lost connection.
    stale: int
    #: Copies that could not be stored at once.
    publish_failures: int
    #: Times the consumer came back after a loss.
    reconnects: int
    #: Times the consumer paused because too many attempts failed.
    pauses: int
    #: Messages delivered and not settled yet.
    outstanding: int
