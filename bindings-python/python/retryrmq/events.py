"""Events: what happened to a message or a consumer, as typed values, for ``on_event``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar


@dataclass(frozen=True)
class Event:
    """The base of all events."""

    #: The event's name, the same in every language.
    name: ClassVar[str] = ""
    #: The work queue.
    queue: str


@dataclass(frozen=True)
class _MessageEvent(Event):
    #: The message's id, if its publisher gave it one.
    message_id: str | None


@dataclass(frozen=True)
class Retried(_MessageEvent):
    """A failed message waits for its next attempt. Its copy is confirmed, its original acknowledged."""

    name = "retried"
    #: The attempt that failed; 1 is the first delivery.
    attempt: int
    #: How long it waits.
    delay: timedelta
    #: The error of this attempt, at most 1024 bytes.
    error: str
    #: The type of that error, if it is known: ``KeyError``.
    error_type: str | None = None


@dataclass(frozen=True)
class Deferred(_MessageEvent):
    """A handler deferred a message."""

    name = "deferred"
    #: How long it waits.
    delay: timedelta


@dataclass(frozen=True)
class Parked(_MessageEvent):
    """A message was parked."""

    name = "parked"
    #: The number of the last attempt.
    attempt: int
    #: Why: ``exhausted``, ``fatal``, ``requested``, ``delivery-limit``, ``undecodable``, ``expired``, ``too-old``, ``rejected`` or
    #: ``overflow``.
    reason: str
    #: The error of the last failure, at most 1024 bytes.
    error: str
    #: The type of that error, if it is known: ``KeyError``.
    error_type: str | None = None


@dataclass(frozen=True)
class Rejected(_MessageEvent):
    """With ``dlx=False``: a failed message was rejected without requeue. The queue's own dead-lettering decides."""

    name = "rejected"
    #: The error of this attempt, at most 1024 bytes.
    error: str
    #: The type of that error, if it is known: ``KeyError``.
    error_type: str | None = None


@dataclass(frozen=True)
class HandedOver(_MessageEvent):
    """With ``strategy="service"``: a failed message was handed over to the service, whose policy decides. Its original is acknowledged."""

    name = "handed_over"
    #: The attempt that failed; 1 is the first delivery.
    attempt: int
    #: The error of this attempt, at most 1024 bytes.
    error: str
    #: The type of that error, if it is known: ``KeyError``.
    error_type: str | None = None


@dataclass(frozen=True)
class Detoured(_MessageEvent):
    """A message was redelivered because its consumer never settled it, or, with `native`, before its delay was over. A copy waits before the next attempt."""

    name = "detoured"
    #: Its crashes so far.
    crashes: int


@dataclass(frozen=True)
class AlreadyHandled(_MessageEvent):
    """A message that was handled before the connection was lost was redelivered. It was acknowledged, not handled again."""

    name = "already_handled"


@dataclass(frozen=True)
class Replayed(_MessageEvent):
    """A message that was replayed from the parking queue arrived, and will be handled again."""

    name = "replayed"


@dataclass(frozen=True)
class PublishFailed(_MessageEvent):
    """A copy could not be stored. It is tried again; the original is still unacknowledged."""

    name = "publish_failed"
    #: Why it could not be stored.
    error: str


@dataclass(frozen=True)
class Requeued(_MessageEvent):
    """A message that did not run, or whose copy could not be stored for ten minutes, went back to the tail of its queue as a copy.

    A requeue by AMQP ``basic.nack`` has no event.
    """

    name = "requeued"


@dataclass(frozen=True)
class Disconnected(Event):
    """The connection or the channel was lost. Unacknowledged messages are delivered again."""

    name = "disconnected"


@dataclass(frozen=True)
class LoginRefused(Event):
    """The connection was lost, and the broker now refuses the login or the virtual host.

    The client keeps trying. Fix the user, the password or the virtual host.
    """

    name = "login_refused"
    #: What the broker refused.
    error: str


@dataclass(frozen=True)
class UnreadableMoved(Event):
    """The consumer moved messages of its queue to ``<queue>.unreadable``: RabbitMQ cannot deliver them over AMQP 0-9-1.

    RabbitMQ closed the connection instead. Their publishers should send other types. Sent once for each look at the queue that moved some.
    """

    name = "unreadable_moved"
    #: The queue to which they were moved.
    to: str
    #: How many were moved.
    count: int
    #: Why the first of them cannot be delivered.
    cause: str


@dataclass(frozen=True)
class ConsumingStopped(Event):
    """RabbitMQ closed one or more connections of the consumer with an error of its own, as it does for a message that it cannot deliver.

    No such message could be moved. The consumer does not consume until the cause is gone. It looks a few times more, and may have to be
    started again. Sent once for each stop; ``Reconnected`` follows when it consumes again.
    """

    name = "consuming_stopped"
    #: Why it does not consume, and what to do.
    error: str


@dataclass(frozen=True)
class Reconnected(Event):
    """The consumer consumes again after a loss."""

    name = "reconnected"


@dataclass(frozen=True)
class Paused(Event):
    """Too many attempts failed, so the consumer takes no messages for a while."""

    name = "paused"
    #: How long the pause lasts.
    delay: timedelta


@dataclass(frozen=True)
class Resumed(Event):
    """The probe message succeeded, so the consumer takes messages again."""

    name = "resumed"


_KINDS: dict[str, type[Event]] = {
    kind.name: kind
    for kind in (
        Retried,
        Deferred,
        Parked,
        HandedOver,
        Rejected,
        Detoured,
        AlreadyHandled,
        Replayed,
        PublishFailed,
        Requeued,
        Disconnected,
        LoginRefused,
        UnreadableMoved,
        ConsumingStopped,
        Reconnected,
        Paused,
        Resumed,
    )
}


def made(name: str, facts: dict[str, Any]) -> Event | None:
    """The event with this name; ``None`` if this version does not know it."""
    kind = _KINDS.get(name)
    if kind is None:
        return None
    if "delay" in facts:  # in nanoseconds
        facts["delay"] = timedelta(microseconds=facts["delay"] // 1000)
    if issubclass(kind, _MessageEvent):
        facts.setdefault("message_id", None)
    return kind(**facts)
