"""Retries on a connection of aio-pika: ``pip install 'retryrmq[aio-pika]'``.

::

    from retryrmq.aio_pika import RetryConsumer

    retries = RetryConsumer("orders", dlx=True, retry="fixed(5s, retries=3)")
    await retries.start(connection)
    queue = await channel.get_queue("orders")
    await queue.consume(retries.around(handle))

If ``handle`` returns, its message is acknowledged. If it raises, a copy waits in the broker and comes back at the tail of the queue. The copy is
published on a channel of its own, with publisher confirms, and only then the original is acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias

try:
    import aiormq
    from aio_pika.abc import AbstractConnection, AbstractIncomingMessage
except ImportError as error:
    raise ImportError("retryrmq.aio_pika needs aio-pika: pip install 'retryrmq[aio-pika]'") from error

from . import _logs, _message
from ._aiormq_publisher import CopyPublisher, PerConnection, frame_max_or_default
from ._crash_isolation import CrashIsolation
from ._native import Message
from ._typing import Unpack
from .contract import RUN, RUN_ALONE, Contract, ContractOptions, Copy, Drop, Queue, Settlement
from .errors import (
    AccessRefusedError,
    InvalidOptionError,
    InvalidTypeError,
    MismatchError,
    NotConfirmedError,
    QueueNotFoundError,
)
from .events import Event, Parked, PublishFailed, Retried
from .outcome import End

logger = _logs.logger("retryrmq")
attempts = _logs.logger("retryrmq.attempt")

#: A function that is called with each event, on the event loop.
Listener: TypeAlias = Callable[[Event], None]

#: After this many seconds an original whose copy cannot be stored goes back to its queue.
_STORE_TIMEOUT = 600.0
#: How long a broker may take to answer when an alarm is over, in seconds.
_GRACE = 60.0
#: The pauses between two tries, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 60.0


class RetryConsumer:
    """Retries and parks the messages of one queue that a program consumes with aio-pika. Options mean the same as in ``App.consume``.

    ``queue_type`` is the type of the waiting and parking queues, and ``app_version`` goes into the history of failures, as in ``connect``. With
    ``declare=False`` no queue is created. ``on_event`` is called on the event loop, and must not block it.

    Raises :class:`InvalidOptionError` or another error that names the option that cannot work.
    """

    def __init__(
        self,
        queue: str,
        *,
        queue_type: str | None = None,
        app_version: str = "",
        declare: bool = True,
        on_event: Listener | None = None,
        **options: Unpack[ContractOptions],
    ) -> None:
        if on_event is not None and (not callable(on_event) or asyncio.iscoroutinefunction(on_event)):
            raise InvalidTypeError(
                "`on_event` must be a function that is called with each event, not a coroutine function"
            )
        self.queue = queue
        self._declare = declare
        self._on_event = on_event
        self._queue_type = queue_type
        self._app_version = app_version
        self._options = options
        self._contract = self._contract_for(0, False)
        self._isolation = CrashIsolation()
        self._contracts: PerConnection[Contract] = PerConnection(self._new_contract)

    def _contract_for(self, frame_max: int, classic: bool) -> Contract:
        return Contract(
            self.queue,
            queue_type=self._queue_type,
            app_version=self._app_version,
            frame_max=frame_max_or_default(frame_max),
            classic=classic,
            **self._options,
        )

    async def start(self, connection: AbstractConnection) -> None:
        """Checks the broker, and declares what is missing: the queue itself, its parking queue and its waiting queues. Call it before you
        consume.

        Raises :class:`MismatchError` if a waiting queue exists with other arguments or the queue is a stream, :class:`QueueNotFoundError`,
        :class:`AccessRefusedError`, and :class:`StrategyRefusedError` for a broker without quorum queues.
        """
        if connection.transport is None:
            raise InvalidOptionError("the connection is not open; connect it first")
        await self._start(connection.transport.connection)

    async def _start(self, connection: aiormq.abc.AbstractConnection, *, work_queue: bool = True) -> None:
        publisher = CopyPublisher.of(connection)
        publisher.check(self._queue_type)
        await self._checked_queue_type(publisher)
        for queue in self._contract.topology():
            if queue.name == self.queue and not work_queue:
                continue
            try:
                await publisher.declare_queue(queue, create=self._declare)
            except (QueueNotFoundError, AccessRefusedError):
                if not queue.optional:
                    raise
        if work_queue:
            await self._contracts.of(connection)

    async def _new_contract(self, connection: aiormq.abc.AbstractConnection) -> Contract:
        """The contract for what consumes on this connection."""
        publisher = CopyPublisher.of(connection)
        return self._contract_for(publisher.frame_max, await self._checked_queue_type(publisher) == "classic")

    async def _checked_queue_type(self, publisher: CopyPublisher) -> str | None:
        kind = await publisher.queue_type(self.queue)
        if kind == "stream":
            raise MismatchError(
                f"the queue `{self.queue}` is a stream, and its messages cannot be retried; use another queue"
            )
        return kind

    def around(
        self, callback: Callable[[AbstractIncomingMessage], Awaitable[Any]]
    ) -> Callable[[AbstractIncomingMessage], Awaitable[None]]:
        """The function to consume with, around yours. Consume without ``no_ack``.

        If your function settles the message itself, that counts, and nothing else happens. It may raise ``retryrmq.RetryAfter``, ``Park``, ``Defer``
        and ``Undecodable``.
        """

        async def consume(raw: AbstractIncomingMessage) -> None:
            attempt = await self.begin(raw)
            if attempt is None:
                return
            try:
                await callback(raw)
            except BaseException as error:
                if ends_the_task(error):
                    attempt.abandon()
                    raise
                await attempt.end(error)
            else:
                await attempt.end()

        return consume

    async def begin(self, raw: AbstractIncomingMessage) -> Attempt | None:
        """Begins an attempt; ``None`` if the message must not run now, because it crashed its consumer. It is settled then.

        Raises :class:`InvalidOptionError` for a message that is acknowledged already.
        """
        if raw.processed:
            raise InvalidOptionError(
                f"a message of `{self.queue}` was acknowledged before it was handled, and cannot be retried; consume without `no_ack`"
            )
        with contextlib.suppress(aiormq.exceptions.AMQPError):  # the broker delivers it again
            connection = raw.channel.connection
            contract = await self._contracts.of(connection)
            message = read(contract, raw)
            decided = contract.admit(message)
            alone = decided is RUN_ALONE
            if decided is RUN:
                crashed = bool(raw.redelivered) or "x-retry-crashes" in message.headers
                may_run = await self._isolation.begin(crashed)
            elif alone:
                may_run = await self._isolation.begin_alone(functools.partial(self._sync, raw))
            else:
                may_run = False
            if may_run:
                _restore_origin(raw, message)
                return Attempt(self, contract, raw, message, alone=alone)
            if decided is RUN or alone:
                decided = contract.detour(message)
            await self._settle_without_running(contract, raw, message, decided)
        return None

    async def begin_simulated(self, raw: AbstractIncomingMessage) -> Attempt:
        """An attempt without a broker, for tests: its end is only reported to ``on_event``."""
        message = read(self._contract, raw)
        await self._isolation.begin(False)
        return Attempt(self, self._contract, raw, message, alone=False, is_simulated=True)

    async def _settle_without_running(
        self, contract: Contract, raw: AbstractIncomingMessage, message: Message, what: Settlement
    ) -> None:
        """Settles a message that did not run. Until the broker knows that, no other message that crashed may run."""
        with self._isolation.detour():
            if await self._settle(contract, raw, message, what):
                with contextlib.suppress(Exception):  # a lost connection has the same effect
                    await self._sync(raw)

    async def _sync(self, raw: AbstractIncomingMessage) -> None:
        """Returns when the broker has read everything that was sent on the consuming channel."""
        await raw.channel.queue_declare(self.queue, passive=True)

    async def _settle(
        self, contract: Contract, raw: AbstractIncomingMessage, message: Message, what: Settlement
    ) -> bool:
        """Stores the copy, if there is one, and then settles the original. Says whether that was sent."""
        if isinstance(what, Copy) and not await self._store(contract, raw, message, what):
            return False
        try:
            await raw.ack()
        except Exception as error:
            _logs.log(
                logger,
                logging.WARNING,
                "%s: %r was settled, but the connection was lost before it was acknowledged (%s); it will be delivered again",
                self.queue,
                message,
                str(error),
                fields=_logs.about(message),
            )
            return False
        self._report(what)
        return True

    async def _store(self, contract: Contract, raw: AbstractIncomingMessage, message: Message, copy: Copy) -> bool:
        """Stores a copy, however often that takes. ``False`` if the original is in its queue again, or soon will be."""
        queue = contract.declaration(copy.routing_key)
        assert queue is not None
        began, tries, pause = time.monotonic(), 0, _FIRST_PAUSE
        publisher = CopyPublisher.of(raw.channel.connection)
        while True:
            try:
                storing = publisher.store(copy, queue, create=self._declare, urgent=contract.is_urgent(message))
                await _wait_for_copy(
                    asyncio.ensure_future(storing), publisher, _STORE_TIMEOUT - (time.monotonic() - began)
                )
                return True
            except Exception as error:
                if publisher.is_lost:
                    return False  # the original comes again
                why = str(error) or type(error).__name__
                if isinstance(error, QueueNotFoundError | AccessRefusedError | MismatchError):
                    copy, queue = self._other_waiting_queue(contract, publisher, copy, queue)
            tries += 1
            left = _STORE_TIMEOUT - (time.monotonic() - began)
            text = "%s: the copy of %r could not be stored (%s); it is tried again, and the message is kept"
            _logs.log(logger, logging.WARNING, text, self.queue, message, why, fields=_logs.about(message, tries=tries))
            self._report(PublishFailed(self.queue, message.message_id, why))
            if left <= 0:
                with contextlib.suppress(Exception):
                    await raw.nack(requeue=True)
                return False
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _other_waiting_queue(
        self, contract: Contract, publisher: CopyPublisher, copy: Copy, queue: Queue
    ) -> tuple[Copy, Queue]:
        """The copy for another waiting queue, if its own cannot be used: the shortest one that is long enough, otherwise the longest."""
        if copy.delay is None:
            return copy, queue
        waits = [
            (it.arguments.get("x-message-ttl"), it) for it in contract.topology() if publisher.has_declared(it.name)
        ]
        known = {ms: it for ms, it in waits if isinstance(ms, int)}
        if not known:
            return copy, queue
        wanted = round(copy.delay.total_seconds() * 1000)
        ms = min((ms for ms in known if ms >= wanted), default=max(known))
        properties = {name: value for name, value in copy.properties.items() if name != "expiration"}
        if ms > wanted:
            properties["expiration"] = str(wanted)
        return replace(copy, routing_key=known[ms].name, properties=properties), known[ms]

    def _report(self, what: Settlement | Event) -> None:
        """Reports an event, or how a message was settled."""
        event = what.event if isinstance(what, Copy | Drop) else what
        if self._on_event is None or not isinstance(event, Event):
            return
        try:
            self._on_event(event)
        except Exception as error:
            _logs.log(logger, logging.ERROR, "%s: `on_event` raised", self.queue, exc_info=error)


class Attempt:
    """One run of a handler. Call :meth:`end` or :meth:`abandon` exactly once."""

    def __init__(
        self,
        owner: RetryConsumer,
        contract: Contract,
        raw: AbstractIncomingMessage,
        message: Message,
        *,
        alone: bool,
        is_simulated: bool = False,
    ) -> None:
        self._alone = alone
        self.is_simulated = is_simulated
        self._owner = owner
        self._contract = contract
        self._raw = raw
        #: The message, with its attempt and its history. ``ack``, ``retry``, ``park`` and ``defer`` decide what :meth:`end` does.
        self.message = message
        _message.simulated[id(message)] = None

    def _finish(self) -> End | None:
        self._owner._isolation.end(alone=self._alone)
        return _message.simulated.pop(id(self.message), None)

    def abandon(self) -> None:
        """Settles nothing: the broker delivers the message again when the channel is closed."""
        self._finish()

    async def end(self, error: BaseException | None = None) -> None:
        """Acknowledges the message, or retries or parks it because its handler raised ``error``. Does nothing if the handler has settled it."""
        by_hand = self._finish()
        if self._raw.processed and not self.is_simulated:
            return
        what = self._decide(error, by_hand)
        if self.is_simulated:
            self._owner._report(what)
            return
        await self._owner._settle(self._contract, self._raw, self.message, what)

    def _decide(self, error: BaseException | None, by_hand: End | None) -> Settlement:
        """What follows, which is logged."""
        if by_hand is not None:
            what = self._contract.ended(self.message, by_hand)
        elif error is None:
            what = self._contract.done(self.message)
        else:
            what = self._contract.failed(self.message, error)
        if isinstance(what, Copy | Drop):
            _log_outcome(self.message, what)
        return what


def ends_the_task(error: BaseException) -> bool:
    """Whether an error ends the task, and is no failure of the handler. A handler may also be left by a cancellation of its own."""
    if not isinstance(error, asyncio.CancelledError):
        return isinstance(error, KeyboardInterrupt | SystemExit)
    cancelling = getattr(asyncio.current_task(), "cancelling", None)  # Python 3.10 has none
    return cancelling is not None and cancelling() > 0


async def _wait_for_copy(storing: asyncio.Future[None], publisher: CopyPublisher, patience: float) -> None:
    """Waits for a copy. Another one must not follow while it may still be stored: during an alarm, that is until the broker reads again."""
    try:
        await asyncio.wait({storing}, timeout=max(0.0, patience))
        if not storing.done():
            await publisher.unblocked()
            await asyncio.wait({storing}, timeout=_GRACE)
        if not storing.done():
            raise NotConfirmedError("the broker has not answered")
        storing.result()
    finally:
        storing.cancel()


def _log_outcome(message: Message, what: Copy | Drop) -> None:
    event = what.event
    where = f"it waits in `{what.routing_key}`" if isinstance(what, Copy) else "it is dropped"
    if isinstance(event, Retried):
        text = f"%s: attempt {message.attempt} of %r failed: %s; {where}"
        _logs.log(attempts, logging.INFO, text, message.queue, message, event.error, fields=_logs.about(message))
    elif isinstance(event, Parked):
        where = f"it is parked in `{what.routing_key}` as {event.reason}" if isinstance(what, Copy) else where
        text = f"%s: attempt {message.attempt} of %r was the last: %s; {where}"
        _logs.log(attempts, logging.WARNING, text, message.queue, message, event.error, fields=_logs.about(message))
    else:
        text = f"%s: %r was deferred; {where}"
        _logs.log(attempts, logging.DEBUG, text, message.queue, message, fields=_logs.about(message))


def _restore_origin(raw: AbstractIncomingMessage, message: Message) -> None:
    """A copy comes back through the default exchange. Handlers, filters and parsers see where the message was first published."""
    shown: Any = raw  # its abstract class does not name what it has
    shown.exchange, shown.routing_key = message.exchange, message.routing_key


def read(contract: Contract, raw: AbstractIncomingMessage) -> Message:
    """The message of a delivery."""
    expiration = raw.expiration
    if isinstance(expiration, timedelta):
        expiration = expiration.total_seconds()
    properties = {
        "content_type": raw.content_type,
        "content_encoding": raw.content_encoding,
        "delivery_mode": None if raw.delivery_mode is None else int(raw.delivery_mode),
        "priority": raw.priority or None,  # aio-pika reads a missing one as 0
        "correlation_id": raw.correlation_id,
        "reply_to": raw.reply_to,
        "expiration": None if expiration is None else str(round(float(expiration) * 1000)),  # type: ignore[arg-type]
        "message_id": raw.message_id,
        "timestamp": raw.timestamp,
        "type": raw.type,
        "user_id": raw.user_id,
        "app_id": raw.app_id,
    }
    return contract.read(
        raw.body,
        exchange=raw.exchange or "",
        routing_key=raw.routing_key or "",
        redelivered=bool(raw.redelivered),
        headers=raw.headers,
        properties=properties,
    )
