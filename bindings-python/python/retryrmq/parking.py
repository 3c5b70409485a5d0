"""Parked messages: read, replayed, dropped. Reading spends nothing and loses nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from types import TracebackType
from typing import Any

from ._async_only import AsyncOnly
from ._native import Client as NativeClient
from ._native import Message, Operation, Record, Walk
from ._pump import pump
from .errors import ClosedError, InvalidTypeError
from .options import checked_text


class ParkedMessage:
    """A parked message and the record of why."""

    def __init__(self, record: Record) -> None:
        self._record = record
        #: The message itself: body, headers, and where it was first published.
        self.message: Message = record.message
        #: ``exhausted``, ``fatal``, ``requested``, ``delivery-limit``, ``undecodable``, ``expired``, ``too-old``,
        #: ``rejected`` or ``overflow``; ``None`` when neither we nor the broker left a reason.
        self.reason: str | None = record.reason
        #: When, to the second, in UTC.
        self.parked_at: datetime | None = record.parked_at
        #: The last failure, one line.
        self.error: str = record.error
        #: The error's type or class; empty when unknown.
        self.error_type: str = record.error_type
        #: The stack trace of the last failure.
        self.stack: str | None = record.stack
        #: Sixteen hexadecimal digits that equal failures share.
        self.fingerprint: str = record.fingerprint
        #: Attempts that were made; 0 when the broker parked it and they were not counted.
        self.attempts: int = record.attempts
        #: Whether the broker dead-lettered it, rather than a consumer of this library parking it.
        self.by_broker: bool = record.by_broker
        #: The queue that it belongs to and is replayed to: the one whose parking queue this is, or another one out of which
        #: the broker dead-lettered it.
        self.home: str = record.home
        #: Sixteen hexadecimal digits that name this one message, wherever it stands: of its id, its body and the record of
        #: its parking. Only messages that are equal in all of these share it.
        self.mark: str = record.mark

    def __repr__(self) -> str:
        return (
            f"<retryrmq.ParkedMessage message_id={self.message.message_id!r} reason={self.reason!r} "
            f"error={self.error!r}>"
        )


class _Parking:
    def __init__(self, native: NativeClient, queue: str) -> None:
        if not isinstance(queue, str):
            raise InvalidTypeError(f"`queue` must be a str, not {type(queue).__name__}")
        self._native = native
        self.queue = queue
        self._walk: Walk | None = None

    def __len__(self) -> int:
        """How many were there when the walk began and have not been seen yet."""
        return self._open().remaining

    def __bool__(self) -> bool:
        return True

    @property
    def others(self) -> int:
        """How many others were taking messages out of the parking queue when the walk began, other walks among them.

        This walk does not see the messages that they hold, and the broker does not tell how many those are.
        """
        return self._open().others

    @property
    def missed(self) -> int:
        """How many messages were there when the walk began, and were taken by others before they came."""
        return self._open().missed

    @property
    def warning(self) -> str | None:
        """What is wrong with the parking queue, as far as a client can see.

        A queue made by somebody else may drop what is parked. Policies cannot be seen.
        """
        return self._open().warning

    def _open(self) -> Walk:
        if self._walk is None:
            raise ClosedError("look at parked messages inside a `with` block, at whose end the others are put back")
        return self._walk

    def _settle(self, parked: ParkedMessage, how: str, *to: str) -> Operation:
        if not isinstance(parked, ParkedMessage):
            raise InvalidTypeError(f"`parked` must be a ParkedMessage, not {type(parked).__name__}")
        operation: Any = getattr(self._open(), how)(parked._record, *to)
        return operation  # type: ignore[no-any-return]


class ParkedMessages(_Parking, AsyncOnly):
    """The messages parked for a queue.

    ::

        async with client.parked("orders") as parked:
            async for it in parked:
                if it.error_type == "Timeout":
                    await parked.replay(it)

    At the end of the block, what was neither replayed nor dropped is back in its place.
    """

    async def __aenter__(self) -> ParkedMessages:
        self._walk = await pump().answer(self._native.parked(self.queue))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        walk, self._walk = self._walk, None
        if walk is not None:
            await pump().answer(walk.close())

    async def __aiter__(self) -> AsyncIterator[ParkedMessage]:
        while (record := await pump().answer(self._open().next())) is not None:
            yield ParkedMessage(record)

    async def replay(self, parked: ParkedMessage) -> None:
        """Sends it back to the tail of its work queue, its retries counted from the start.

        What the broker dead-lettered out of another queue goes to that one: see :attr:`ParkedMessage.home`. The parked one
        goes after the copy is confirmed; raises :class:`UnroutableError` when the queue is gone.
        """
        await pump().answer(self._settle(parked, "replay"))

    async def replay_to(self, parked: ParkedMessage, queue: str) -> None:
        """As :meth:`replay`, to a queue of your choice."""
        await pump().answer(self._settle(parked, "replay_to", checked_text("queue", queue)))

    async def drop(self, parked: ParkedMessage) -> None:
        """Drops the message for good."""
        await pump().answer(self._settle(parked, "drop"))


class BlockingParkedMessages(_Parking):
    """The messages parked for a queue, for threads; as :class:`ParkedMessages`."""

    def __enter__(self) -> BlockingParkedMessages:
        self._walk = self._native.parked(self.queue).wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        walk, self._walk = self._walk, None
        if walk is not None:
            walk.close().wait()

    def __iter__(self) -> Iterator[ParkedMessage]:
        while (record := self._open().next().wait()) is not None:
            yield ParkedMessage(record)

    def replay(self, parked: ParkedMessage) -> None:
        """As :meth:`ParkedMessages.replay`."""
        self._settle(parked, "replay").wait()

    def replay_to(self, parked: ParkedMessage, queue: str) -> None:
        """As :meth:`replay`, to a queue of your choice."""
        self._settle(parked, "replay_to", checked_text("queue", queue)).wait()

    def drop(self, parked: ParkedMessage) -> None:
        """Drops the message for good."""
        self._settle(parked, "drop").wait()
