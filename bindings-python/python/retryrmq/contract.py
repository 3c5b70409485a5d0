"""The wire contract without a connection: what to do with a message that another AMQP client received.

It is for programs that consume and publish with aio-pika, pika, kombu or the like, and want the retries of this package on that connection::

    contract = Contract("orders", dlx=True, retry="fixed(5s, retries=3)")
    message = contract.read(body, headers=headers, properties=properties, redelivered=True)
    what = contract.admit(message)
    if what is RUN or what is RUN_ALONE:
        what = contract.failed(message, error)  # or contract.done(message)
    if isinstance(what, Copy):
        ...  # publish it, wait for the confirm
    ...  # and only then acknowledge the original

Nothing here talks to a broker. :class:`Copy` says what must be published, and how.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, Final, TypeAlias, TypedDict

from . import _native, outcome
from ._native import Message
from ._typing import Unpack
from .errors import InvalidOptionError, InvalidTypeError
from .events import Event, made
from .options import WorkQueue, plan
from .policy import Policy, Rule

__all__ = ["ACK", "RUN", "RUN_ALONE", "Admitted", "Contract", "ContractOptions", "Copy", "Drop", "Queue", "Settlement"]


class ContractOptions(TypedDict, total=False):
    """Those options of a consumer that decide what happens to a message. They mean the same as in ``App.consume``."""

    dlx: bool
    retry: Policy | str
    rules: list[Rule | str]
    strategy: str
    park: bool
    fatal: type[BaseException] | tuple[type[BaseException], ...]
    work_queue: WorkQueue
    reserved_name: bool
    crash_limit: int
    defer_limit: int


class _Word(Enum):
    ACK = "ack"
    RUN = "run"
    RUN_ALONE = "run alone"


#: Acknowledge the message.
ACK: Final = _Word.ACK
#: Run its handler.
RUN: Final = _Word.RUN
#: Run its handler while nothing else is unacknowledged: it may be the message that crashes its consumers. If that is not possible, send it
#: through :meth:`Contract.detour`.
RUN_ALONE: Final = _Word.RUN_ALONE


@dataclass(frozen=True)
class Queue:
    """A queue that must exist. It is durable, and neither exclusive nor deleted automatically."""

    name: str
    #: Its arguments. Integers are signed 64-bit numbers on the wire (``l``).
    arguments: dict[str, str | int | bool]
    #: Whether an existing queue must have exactly these arguments: declare it, and treat 406 as an error. Otherwise look for it first with a
    #: passive declaration, and use it as it is. A stream cannot be used.
    exact: bool
    #: Whether it is created if it is missing.
    create: bool
    #: Whether a consumer that may not create it can do without it.
    optional: bool = False


@dataclass(frozen=True)
class Copy:
    """Publish this, wait until the broker has confirmed it and has not returned it, and only then acknowledge the original.

    It goes to the default exchange, ``mandatory`` and persistent. If it is returned, declare the queue
    (:meth:`Contract.declaration`) and publish it again. Keep the original until the queue has been known for two seconds: a quorum queue that is
    younger can lose confirmed messages when its broker is killed.
    """

    #: The waiting or parking queue.
    routing_key: str
    body: bytes
    #: All properties except the headers, by their AMQP names; ``delivery_mode`` is 2. Set no others.
    properties: dict[str, Any]
    #: All headers.
    headers: dict[str, Any]
    #: The same headers as the fields of an AMQP table, without the length before them. A client that writes them as they are keeps their exact types.
    table: bytes
    #: How long it waits; ``None`` if it is parked.
    delay: timedelta | None
    #: What to report once the copy is confirmed: :class:`Retried`, :class:`Deferred`, :class:`Detoured` or :class:`Parked`.
    event: Event
    exchange: Final = ""
    mandatory: Final = True

    #: The same for a store of the native half, which can publish it instead. A copy that was pickled or replaced has none.
    _decision: ClassVar[_native.Decision | None] = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_decision"}


@dataclass(frozen=True)
class Drop:
    """Acknowledge the message: it was given up, and ``park`` is off."""

    #: What to report.
    event: Event


#: How a message is settled: :data:`ACK`, a :class:`Copy` or a :class:`Drop`.
Settlement: TypeAlias = "_Word | Copy | Drop"
#: What to do with a message before its handler: :data:`RUN`, :data:`RUN_ALONE`, or how it is settled without it.
Admitted: TypeAlias = "_Word | Copy | Drop"


class Contract:
    """Decides about the messages of one work queue as ``App.consume`` with ``dlx=True`` would. It knows the strategy ``retry-queues``.

    ``queue_type`` is the type of the waiting and parking queues, as in ``connect``. ``app_version`` goes into the history of failures.
    ``frame_max`` is the frame size of the publishing connection: all headers of a copy must fit into one frame. ``classic`` says that the
    work queue is a classic queue, which counts no crashes; leave it off if you do not know.

    Raises :class:`InvalidOptionError` or another error that names the option that cannot work.
    """

    def __init__(
        self,
        queue: str,
        *,
        queue_type: str | None = None,
        app_version: str = "",
        frame_max: int = 131_072,
        classic: bool = False,
        **options: Unpack[ContractOptions],
    ) -> None:
        unknown = options.keys() - ContractOptions.__annotations__.keys()
        if unknown:
            known = ", ".join(ContractOptions.__annotations__)
            raise InvalidTypeError(f"there is no option `{min(unknown)}` of a contract; the options are {known}")
        checked = plan(queue, None, options)  # type: ignore[arg-type]
        self.queue = queue
        self._fatal = checked.fatal
        self._has_rules = checked.native.has_rules
        self._native = _native.Contract(checked.native, queue_type, app_version, frame_max, classic)

    def topology(self) -> list[Queue]:
        """What must exist before the first message is consumed, in the order of creation."""
        return [Queue(*queue) for queue in self._native.topology()]

    def declaration(self, name: str) -> Queue | None:
        """How the waiting or parking queue ``name`` is declared; ``None`` for other queues. A waiting queue for a delay that a handler chose is
        not part of the topology."""
        found = self._native.declaration(name)
        return None if found is None else Queue(*found)

    def read(
        self,
        body: bytes,
        *,
        exchange: str = "",
        routing_key: str = "",
        redelivered: bool = False,
        headers: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> Message:
        """The message, with its attempt, its history and its origin. ``exchange``, ``routing_key`` and ``redelivered`` are those of
        ``basic.deliver``, ``properties`` has AMQP names.

        Clients decode headers into Python values, which do not tell all AMQP types apart. A copy has every integer as 64 bits (``l``), every
        fraction as ``d`` and every text as ``S``. Dates without a time zone count as UTC. What AMQP cannot carry at all, such as a negative
        decimal or what is nested more than 32 levels deep, becomes text.
        """
        return self._native.read(
            bytes(body),
            (exchange, routing_key),
            redelivered,
            None if headers is None else {name: _carried(value) for name, value in headers.items()},
            {name: _carried(value) for name, value in (properties or {}).items() if value is not None},
        )

    def admit(self, message: Message) -> Admitted:
        """What to do with a message before its handler gets it."""
        what, settled = self._native.admit(message)
        if settled is None:
            return RUN_ALONE if what == "alone" else RUN
        return _settlement(message, settled)

    def done(self, message: Message) -> Settlement:
        """What follows a handler that succeeded."""
        return self.ended(message, outcome.ACK)

    def failed(self, message: Message, error: BaseException) -> Settlement:
        """What follows a handler that raised ``error``, which may be one of ``RetryAfter``, ``Park``, ``Defer`` and ``Undecodable``. Never raises."""
        end = outcome.classify(error, self._fatal, kinds=self._has_rules, stack=self._native.may_park(message))
        try:
            return self.ended(message, end)
        except Exception as trouble:
            return self.ended(message, outcome.unreadable_error(error, trouble))

    def ended(self, message: Message, end: outcome.End) -> Settlement:
        """What follows an attempt that ended like this."""
        return _settlement(message, self._native.after(message, end))

    def detour(self, message: Message) -> Settlement:
        """A short wait for a message that did not run, with its crashes unchanged."""
        return _settlement(message, self._native.detour(message))

    def _park(self, message: Message, reason: str, end: outcome.End) -> Settlement:
        """Parks it for this reason, a word of ``x-retry-parked-reason``, with the failure of ``end``."""
        return _settlement(message, self._native.park(message, reason, end))

    def is_urgent(self, message: Message) -> bool:
        """Whether the copy must not wait until its queue is two seconds old: the work queue has counted so many deliveries of the original that
        the broker may drop it after the next one."""
        return self._native.is_urgent(message)


def _settlement(message: Message, settled: tuple[Any, ...]) -> Settlement:
    what, row, routing_key, properties, headers, table, delay, decision = settled
    if what == "ack":
        return ACK
    facts = json.loads(row)
    event = made(facts.pop("name"), facts)
    if event is None:
        raise InvalidOptionError("the two halves of retryrmq have different versions; install the package again")
    if what == "drop":
        return Drop(event)
    wait = None if delay is None else timedelta(seconds=delay)
    copy = Copy(routing_key, message.body, properties, headers, table, wait, event)
    object.__setattr__(copy, "_decision", decision)
    return copy


_INT64 = range(-(2**63), 2**63)
#: How deep tables and lists are read.
_DEPTH = 32


def _carried(value: Any, depth: int = 0) -> Any:
    """A value as a client decoded it, as one that can be sent again."""
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=timezone.utc)
    if isinstance(value, Decimal) and (value.is_signed() or not value.is_finite()):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and value not in _INT64:
        return str(value)
    if isinstance(value, Mapping | list | tuple) and depth == _DEPTH:
        return _as_text(value)
    if isinstance(value, Mapping):
        return {str(name): _carried(entry, depth + 1) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_carried(entry, depth + 1) for entry in value]
    return value


def _as_text(value: Any) -> str:
    try:
        return str(value)
    except RecursionError:
        return "…"
