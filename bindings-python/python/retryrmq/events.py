"""Events: what happened to which message, as typed values, for ``on_event``."""

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
    """A failed message is on its way to wait; its original is acknowledged."""

    name = "retried"
    #: The attempt that failed; 1 is the first delivery.
    attempt: int
    #: How long it waits.
    delay: timedelta
    #: Why it failed.
    error: str


@dataclass(frozen=True)
class Deferred(_MessageEvent):
    """A message was deferred by its handler."""

    name = "deferred"
    #: How long it waits.
    delay: timedelta


@dataclass(frozen=True)
class Parked(_MessageEvent):
    """A message was parked."""

    name = "parked"
    #: The last attempt made.
    attempt: int
    #: Why: ``exhausted``, ``fatal``, ``requested``, ``delivery-limit``, ``undecodable``, ``expired``, ``too-old``, ``rejected`` or
    #: ``overflow``.
    reason: str
    #: The last failure.
    error: str


@dataclass(frozen=True)
class Rejected(_MessageEvent):
    """With ``dlx=False``: a failed message was rejected; the queue's own dead-lettering decides."""

    name = "rejected"
    #: Why it failed.
    error: str


@dataclass(frozen=True)
class HandedOver(_MessageEvent):
    """With ``strategy="service"``: a failed message was handed over to the service, whose policy decides; its original is acknowledged."""

    name = "handed_over"
    #: The attempt that failed; 1 is the first delivery.
    attempt: int
    #: Why it failed.
    error: str


@dataclass(frozen=True)
class Detoured(_MessageEvent):
    """A message that came back from a consumer without an answer takes a detour, so that the crash is counted."""

    name = "detoured"
    #: Crashes so far.
    crashes: int


@dataclass(frozen=True)
class AlreadyHandled(_MessageEvent):
    """A message that was handled before the connection dropped came again, and was acknowledged, not run again."""

    name = "already_handled"


@dataclass(frozen=True)
class Replayed(_MessageEvent):
    """A message that was replayed from the parking queue arrived, to be handled again."""

    name = "replayed"


@dataclass(frozen=True)
class PublishFailed(_MessageEvent):
    """A copy could not be stored; it is tried again, and the original is still unacknowledged."""

    name = "publish_failed"
    #: Why.
    error: str


@dataclass(frozen=True)
class Requeued(_MessageEvent):
    """Copies could not be stored for long: the message goes back to its queue."""

    name = "requeued"


@dataclass(frozen=True)
class Disconnected(Event):
    """The connection or the channel was lost; what was unacknowledged comes again."""

    name = "disconnected"


@dataclass(frozen=True)
class LoginRefused(Event):
    """The connection was lost, and the broker refuses the login or the virtual host now.

    It is tried again; somebody has to change the login or the virtual host.
    """

    name = "login_refused"
    #: What the broker refuses.
    error: str


@dataclass(frozen=True)
class Reconnected(Event):
    """Consuming again after a loss."""

    name = "reconnected"


@dataclass(frozen=True)
class Paused(Event):
    """Too large a share of attempts failed: no messages are taken for a while."""

    name = "paused"
    #: For how long.
    delay: timedelta


@dataclass(frozen=True)
class Resumed(Event):
    """The probe message succeeded: messages are taken again."""

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
        Reconnected,
        Paused,
        Resumed,
    )
}


def made(name: str, facts: dict[str, Any]) -> Event | None:
    """The event with this name; ``None`` for one that this version does not know."""
    kind = _KINDS.get(name)
    if kind is None:
        return None
    if issubclass(kind, _MessageEvent):
        facts.setdefault("message_id", None)
    return kind(**facts)
