"""Parked messages: read, replayed, dropped. Reading loses no message."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from types import TracebackType
from typing import Any

from ._async_only import AsyncOnly
from ._native import Client as NativeClient
from ._native import Message, Operation, Record, Walk, time
from ._notifications import dispatcher
from ._notifications import wait as wait_for
from ._unawaited import must_be_awaited
from .errors import ClosedError, InvalidTypeError
from .options import checked_text


class ParkedMessage:
    """A parked message, and the record of why it was parked."""

    def __init__(self, record: Record) -> None:
        self._record = record
        row = json.loads(record.row)
        #: The message itself: body, headers, and where it was first published.
        self.message: Message = record.message
        #: Why it was parked: ``exhausted``, ``fatal``, ``requested``, ``delivery-limit``, ``undecodable``, ``expired``, ``too-old``,
        #: ``rejected`` or ``overflow``; ``None`` if neither a consumer nor the broker left a reason.
        self.reason: str | None = row.get("reason")
        #: When it was parked, in whole seconds, in UTC.
        self.parked_at: datetime | None = time(row["parked_at"]) if "parked_at" in row else None
        #: The last failure, one line.
        self.error: str = row["error"]
        #: The error's type or class; empty if unknown.
        self.error_type: str = row["error_type"]
        #: The stack trace of the last failure, if there is one.
        self.stack: str | None = row.get("stack")
        #: Sixteen hexadecimal digits that equal failures share.
        self.fingerprint: str = row["fingerprint"]
        #: How many attempts were made; 0 if the broker parked it and nothing counted.
        self.attempts: int = row["attempts"]
        #: Whether the broker dead-lettered it. Otherwise a consumer of this library parked it.
        self.by_broker: bool = row["by_broker"]
        #: The queue to which it is replayed: the work queue of this parking queue, or another queue from which the broker
        #: dead-lettered it.
        self.home: str = row["home"]
        #: Sixteen hexadecimal digits that identify this one message. They are computed from its id, its body and the record of its
        #: parking, so only messages that are equal in all of these share it.
        self.mark: str = row["mark"]

    def __repr__(self) -> str:
        return (
            f"<retryrmq.ParkedMessage message_id={self.message.message_id!r} reason={self.reason!r} "
            f"error={self.error!r}>"
        )


class _ParkedWalkBase:
    def __init__(self, native: NativeClient, queue: str) -> None:
        if not isinstance(queue, str):
            raise InvalidTypeError(f"`queue` must be a str, not {type(queue).__name__}")
        self._native = native
        self.queue = queue
        self._walk: Walk | None = None
        #: Operations for the next message whose waits were cancelled. Their messages may have come by then, so the next wait is for the
        #: oldest of them: a further one would pass over its message.
        self._cancelled_waits: deque[Operation] = deque()

    def __len__(self) -> int:
        """How many messages were ready when the walk began and were not shown yet."""
        return self._open().remaining

    def __bool__(self) -> bool:
        return True

    @property
    def others(self) -> int:
        """How many other consumers the parking queue had when the walk began. Other walks are among them.

        This walk does not see the messages they hold, and the broker does not tell how many those are.
        """
        return self._open().others

    @property
    def missed(self) -> int:
        """How many messages were ready when the walk began, and were taken by others before this walk came to them."""
        return self._open().missed

    @property
    def warning(self) -> str | None:
        """What is wrong with the parking queue, as far as a client can see; ``None`` if nothing is.

        A queue that somebody else declared may drop parked messages. Policies cannot be seen.
        """
        return self._open().warning

    def _open(self) -> Walk:
        if self._walk is None:
            raise ClosedError("look at parked messages inside a `with` block, at whose end the others are put back")
        return self._walk

    def _end_walk(self) -> Operation | None:
        """Ends the walk, and waits for its next message with it."""
        walk, self._walk = self._walk, None
        self._cancelled_waits.clear()
        return None if walk is None else walk.close()

    def _settle(self, parked: ParkedMessage, how: str, *to: str) -> Operation:
        if not isinstance(parked, ParkedMessage):
            raise InvalidTypeError(f"`parked` must be a ParkedMessage, not {type(parked).__name__}")
        operation: Any = getattr(self._open(), how)(parked._record, *to)
        return operation  # type: ignore[no-any-return]


class ParkedMessages(_ParkedWalkBase, AsyncOnly):
    """The messages parked for a queue.

    ::

        async with client.parked("orders") as parked:
            async for it in parked:
                if it.error_type == "Timeout":
                    await parked.replay(it)

    The walk holds the messages it has shown until the end of the block. Those that were neither replayed nor dropped are then back in their
    places. Leaving the block also ends a wait for the next message. After a cancelled wait, the next one shows the message that the first
    waited for.

    Entering the block raises :class:`QueueNotFoundError` if nothing was ever parked, and :class:`AccessRefusedError` without permission to
    read the queue or to publish.
    """

    async def __aenter__(self) -> ParkedMessages:
        self._walk = await dispatcher().wait_async(self._native.parked(self.queue))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leaving = self._end_walk()
        if leaving is not None:
            await dispatcher().wait_async(leaving)

    async def __aiter__(self) -> AsyncIterator[ParkedMessage]:
        while (record := await self._next()) is not None:
            yield ParkedMessage(record)

    async def _next(self) -> Record | None:
        walk = self._open()
        operation = self._cancelled_waits.popleft() if self._cancelled_waits else walk.next()
        try:
            record: Record | None = await dispatcher().wait_async(operation)
        except asyncio.CancelledError:
            if walk is self._walk:
                self._cancelled_waits.append(operation)
            raise
        return record

    @must_be_awaited("parked.replay")
    async def replay(self, parked: ParkedMessage) -> None:
        """Replays a message: publishes a copy to the tail of its work queue, and acknowledges the parked one after the confirm.

        The copy's retries count from the start. It goes to the queue that :attr:`ParkedMessage.home` names. The first replay to a queue
        takes two seconds. Raises :class:`UnroutableError` if the queue does not exist, and the errors of publishing: the message stays
        parked. Raises :class:`InvalidOptionError` if it was already replayed or dropped, belongs to another walk, or could not be read as it
        is (:attr:`Message.mended`). After :class:`ConnectionLostError` it is still parked, and may also be in the work queue.
        """
        await dispatcher().wait_async(self._settle(parked, "replay"))

    @must_be_awaited("parked.replay_to")
    async def replay_to(self, parked: ParkedMessage, queue: str) -> None:
        """Like :meth:`replay`, to a queue of your choice. Raises :class:`InvalidOptionError` also for a waiting or parking queue."""
        await dispatcher().wait_async(self._settle(parked, "replay_to", checked_text("queue", queue)))

    @must_be_awaited("parked.drop")
    async def drop(self, parked: ParkedMessage) -> None:
        """Drops a message for good (AMQP ``basic.ack``).

        Raises :class:`InvalidOptionError` if it was already replayed or dropped, or belongs to another walk. After
        :class:`ConnectionLostError` it may still be parked.
        """
        await dispatcher().wait_async(self._settle(parked, "drop"))


class BlockingParkedMessages(_ParkedWalkBase):
    """Like :class:`ParkedMessages`, for threads: ``with`` and ``for`` instead of ``async with`` and ``async for``."""

    def __enter__(self) -> BlockingParkedMessages:
        self._walk = wait_for(self._native.parked(self.queue))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leaving = self._end_walk()
        if leaving is not None:
            wait_for(leaving)

    def __iter__(self) -> Iterator[ParkedMessage]:
        while (record := wait_for(self._open().next())) is not None:
            yield ParkedMessage(record)

    def replay(self, parked: ParkedMessage) -> None:
        """Like :meth:`ParkedMessages.replay`."""
        wait_for(self._settle(parked, "replay"))

    def replay_to(self, parked: ParkedMessage, queue: str) -> None:
        """Like :meth:`ParkedMessages.replay_to`."""
        wait_for(self._settle(parked, "replay_to", checked_text("queue", queue)))

    def drop(self, parked: ParkedMessage) -> None:
        """Like :meth:`ParkedMessages.drop`."""
        wait_for(self._settle(parked, "drop"))
