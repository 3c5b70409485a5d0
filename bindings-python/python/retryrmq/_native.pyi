from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias, final

from typing_extensions import Self

from ._duration import Duration
from ._message import Settled
from .outcome import End
from .record import HistoryEntry

__all__ = [
    "PAUSE",
    "VERSION",
    "Batches",
    "Client",
    "Contract",
    "CopyStore",
    "CredentialRequest",
    "Decision",
    "Message",
    "NotificationQueue",
    "Operation",
    "Options",
    "Record",
    "Simulation",
    "Subscription",
    "Walk",
    "check_queue_type",
    "check_url",
    "connect",
    "default_policy",
    "duration_text",
    "live_objects",
    "parse_duration",
    "policy",
    "time",
    "want_lines",
]

VERSION: str
#: The default pause: share of failures, window, duration as text.
PAUSE: tuple[float, int, str]

def time(seconds: int) -> Any: ...
def connect(
    url: str,
    app_version: str,
    queue_type: str | None,
    wait: bool,
    end_when_refused: bool,
    provider: tuple[NotificationQueue, int] | None,
) -> Operation: ...
def check_url(url: str) -> None: ...
def check_queue_type(queue_type: str) -> None: ...
def parse_duration(text: str) -> float: ...
def duration_text(seconds: float) -> str: ...
def policy(text: str) -> tuple[str, int, list[float]]: ...
def default_policy() -> str: ...
def live_objects() -> dict[str, int]: ...
def want_lines(least: int) -> None: ...

@final
class Message:
    """A message.

    If its handler returns, it is acknowledged; if the handler raises, it is retried. The methods ``ack``, ``retry``, ``park`` and ``defer``
    are for code that iterates over a consumer. They settle the message at once and never fail; awaiting their result is optional. Only the
    first one counts.
    """

    @property
    def body(self) -> bytes:
        """The body, as it was published."""

    def text(self) -> str:
        """The body as text.

        Raises ``UnicodeDecodeError`` if it is not UTF-8.
        """

    def json(self) -> Any:
        """The body, parsed as JSON.

        Raises ``json.JSONDecodeError`` or ``UnicodeDecodeError`` (both are ``ValueError``s) if it is not JSON.
        """

    @property
    def headers(self) -> dict[str, Any]:
        """The headers. They include the headers of the broker and the ``x-retry-*`` headers of this library."""

    @property
    def properties(self) -> dict[str, Any]:
        """The properties that are set, by their AMQP names, without the headers."""

    @property
    def exchange(self) -> str:
        """The exchange the message was first published to; empty for the default exchange."""

    @property
    def routing_key(self) -> str:
        """The routing key the message was first published with."""

    @property
    def message_id(self) -> str | None:
        """The id that the publisher gave it; ``None`` without one."""

    @property
    def attempt(self) -> int:
        """The number of this attempt: 1 on first delivery."""

    @property
    def retries(self) -> int:
        """How many attempts failed before this one: ``attempt - 1``."""

    @property
    def first_failed_at(self) -> datetime | None:
        """When the first attempt failed, in whole seconds, in UTC; ``None`` if none has failed."""

    @property
    def last_error(self) -> str | None:
        """The error of the last failed attempt; ``None`` if none has failed."""

    @property
    def replays(self) -> int:
        """How often the message was replayed from the parking queue."""

    @property
    def queue(self) -> str:
        """The work queue it came from."""

    @property
    def redelivered(self) -> bool:
        """Whether the broker has delivered this message before (AMQP ``redelivered``)."""

    @property
    def mended(self) -> str | None:
        """Damage that was repaired so that the message could be read, such as names that are not UTF-8 or tables nested too deeply; ``None`` if
        there was none. If the handler fails on such a message, it is parked as ``undecodable`` at once."""

    @property
    def history(self) -> list[HistoryEntry]:
        """The last failures, at most ten, oldest first."""

    def ack(self) -> Settled:
        """Acknowledges the message: it was handled."""

    def retry(self, error: BaseException | str | None = None, *, delay: Duration | None = None) -> Settled:
        """Ends the attempt as failed. The message is retried after ``delay``, or after the policy's delay. If no retries are left, it is
        parked. Without ``dlx`` it is rejected without requeue."""

    def park(self, reason: BaseException | str) -> Settled:
        """Parks the message now as ``requested``; ``reason`` goes into its record. Without ``dlx`` it is rejected without requeue."""

    def defer(self, delay: Duration) -> Settled:
        """Delivers the message again after ``delay``; no attempt is used up. After ``defer_limit`` deferrals it is parked as ``exhausted``.
        Without ``dlx`` the consumer holds it for at most a minute, then publishes a copy to the tail of its queue; after ``defer_limit``
        deferrals it is rejected."""

    def _history(self) -> str: ...
    def _may_park(self) -> bool: ...
    @property
    def _is_settled(self) -> bool: ...
    def _settle(self, end: End) -> None: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...

@final
class Operation:
    def notify(self, notifications: NotificationQueue, ticket: int) -> None: ...
    def wait(self, seconds: float | None = None) -> Any: ...
    def give_up(self) -> None: ...
    def done(self) -> bool: ...
    def result(self) -> Any: ...

@final
class NotificationQueue:
    def __new__(cls) -> Self: ...
    def fetch(
        self, seconds: float
    ) -> (
        tuple[
            list[int],
            list[tuple[int, str]],
            list[tuple[int, CredentialRequest | None]],
            list[tuple[str, int, str, list[tuple[str, str]]]],
            int,
        ]
        | None
    ): ...
    def wakeups(self) -> int: ...
    def end(self) -> None: ...

@final
class CredentialRequest:
    def answer(self, user: str, password: str, expires_in: float | None) -> None: ...
    def refuse(self, why: str) -> None: ...
    @property
    def is_open(self) -> bool: ...

@final
class Options:
    def __new__(cls, given: str) -> Self: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def prefetch(self) -> int: ...
    @property
    def batch(self) -> int | None: ...
    @property
    def handler_timeout(self) -> float | None: ...
    @property
    def drain_timeout(self) -> float: ...
    @property
    def has_rules(self) -> bool: ...

#: What, the event, the routing key, properties, headers, the headers as AMQP writes them, the delay in seconds.
_Settled: TypeAlias = tuple[
    str, str | None, str, dict[str, Any] | None, dict[str, Any] | None, bytes | None, float | None, "Decision | None"
]

@final
class Contract:
    def __new__(
        cls, options: Options, queue_type: str | None, app_version: str, frame_max: int, classic: bool
    ) -> Self: ...
    def topology(self) -> list[tuple[str, dict[str, str | int | bool], bool, bool, bool]]: ...
    def declaration(self, name: str) -> tuple[str, dict[str, str | int | bool], bool, bool, bool] | None: ...
    def read(
        self,
        body: bytes,
        route: tuple[str, str],
        redelivered: bool,
        headers: dict[str, Any] | None,
        properties: dict[str, Any],
    ) -> Message: ...
    def admit(self, message: Message) -> tuple[str, _Settled | None]: ...
    def after(self, message: Message, end: End) -> _Settled: ...
    def detour(self, message: Message) -> _Settled: ...
    def may_park(self, message: Message) -> bool: ...
    def park(self, message: Message, reason: str, end: End) -> _Settled: ...
    def is_urgent(self, message: Message) -> bool: ...

@final
class Decision: ...

@final
class CopyStore:
    def store(self, decision: Decision) -> Operation: ...

@final
class Client:
    def subscribe(self, options: Options, listener: tuple[NotificationQueue, int] | None) -> Operation: ...
    def publish(self, message: Mapping[str, Any]) -> Operation: ...
    def parked(self, queue: str) -> Operation: ...
    def copy_store(self, queue: str) -> CopyStore: ...
    def close(self) -> Operation: ...
    def metrics_text(self) -> str: ...
    def trouble(self) -> str | None: ...
    def check_end(self) -> None: ...
    @property
    def reconnects(self) -> int: ...
    @property
    def server(self) -> dict[str, str]: ...
    @property
    def frame_max(self) -> int: ...

@final
class Subscription:
    def take(self, most: int) -> list[Message]: ...
    def take_blocking(self, most: int, seconds: float) -> list[Message]: ...
    def batches(self, most: int | None = None) -> Batches: ...
    def ready(self) -> Operation: ...
    def ack(self, messages: list[Message]) -> None: ...
    def give_back(self, messages: list[Message]) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...
    @property
    def is_closing(self) -> bool: ...
    def wait_closed(self) -> Operation: ...
    def stats(self) -> dict[str, int]: ...

@final
class Batches:
    def take(self, ended: bool) -> list[Message]: ...
    def take_blocking(self, seconds: float) -> list[Message]: ...

@final
class Walk:
    def next(self) -> Operation: ...
    def replay(self, record: Record) -> Operation: ...
    def replay_to(self, record: Record, queue: str) -> Operation: ...
    def drop(self, record: Record) -> Operation: ...
    def close(self) -> Operation: ...
    @property
    def remaining(self) -> int: ...
    @property
    def others(self) -> int: ...
    @property
    def missed(self) -> int: ...
    @property
    def warning(self) -> str | None: ...

@final
class Record:
    @property
    def message(self) -> Message: ...
    @property
    def row(self) -> str: ...

@final
class Simulation:
    def __new__(cls, options: Options) -> Self: ...
    def publish(self, message: Mapping[str, Any]) -> None: ...
    def next(self) -> Message | None: ...
    def advance(self, by: float) -> None: ...
    @property
    def elapsed(self) -> float: ...
    def settle(self, message: Message, end: End) -> tuple[str, float | None, str | None, Message | None]: ...
