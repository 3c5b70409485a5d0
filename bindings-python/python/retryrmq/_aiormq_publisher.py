"""Copies on a connection of aiormq, which is below aio-pika: queues that are known to exist, and confirmed publishes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar, Generic, TypeVar, cast

import aiormq
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage

from .contract import Copy, Queue
from .errors import (
    AccessRefusedError,
    MismatchError,
    NotConfirmedError,
    QueueNotFoundError,
    StrategyRefusedError,
    UnroutableError,
)

T = TypeVar("T")

#: How old a queue must be before a copy in it survives a crash of the broker, in seconds.
_SAFE_AGE = 2.0
#: How long an answer to a question may take, in seconds: during an alarm the broker reads nothing.
_BROKER_TIMEOUT = 600.0
_DEFAULT_FRAME_MAX = 131_072


def frame_max_or_default(bytes: int) -> int:
    """The frame size, if the broker has none, or it is not known."""
    return bytes or _DEFAULT_FRAME_MAX


class PerConnection(Generic[T]):
    """A value that is made once for each connection, and forgotten with it."""

    def __init__(self, make: Callable[[AbstractConnection], Awaitable[T]]) -> None:
        self._make = make
        self._made: dict[AbstractConnection, T] = {}
        self._lock = asyncio.Lock()

    async def of(self, connection: AbstractConnection) -> T:
        if connection not in self._made:
            async with self._lock:
                if connection not in self._made:
                    made = await self._make(connection)
                    connection.closing.add_done_callback(lambda _: self._made.pop(connection, None))
                    self._made[connection] = made
                    return made
        return self._made[connection]


class _Properties(aiormq.spec.Basic.Properties):
    """Properties whose headers are written as they are: the client would choose other types."""

    def __init__(self, copy: Copy) -> None:
        given = {"message_type" if name == "type" else name: value for name, value in copy.properties.items()}
        given.pop("cluster_id", None)  # AMQP reserves it, and the client refuses it
        super().__init__(headers=copy.headers, **given)
        self.table = copy.table

    def encode_property(self, name: str, value: Any) -> bytes:
        if name == "headers":
            return struct.pack(">I", len(self.table)) + self.table
        return super().encode_property(name, value)


class CopyPublisher:
    """What is known of the broker behind one connection. After a reconnection nothing of it holds."""

    _all: ClassVar[dict[AbstractConnection, CopyPublisher]] = {}

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        #: The queues that exist, and when a copy in them is safe, on the clock of the loop.
        self._declared: dict[str, tuple[Queue, float]] = {}
        self._marked: set[str] = set()
        self._tasks: set[asyncio.Future[None]] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._channel_lock = asyncio.Lock()
        self._publish_channel: AbstractChannel | None = None
        #: Ids of messages that are being published, and how many copies have them.
        self._ids: dict[str, tuple[asyncio.Lock, int]] = {}

    @classmethod
    def of(cls, connection: AbstractConnection) -> CopyPublisher:
        found = cls._all.get(connection)
        if found is None:
            found = cls._all[connection] = cls(connection)
            connection.closing.add_done_callback(lambda _: cls._all.pop(connection, None))
        return found

    @property
    def is_lost(self) -> bool:
        return self._connection.is_closed

    @property
    def frame_max(self) -> int:
        return int(cast("Any", self._connection).connection_tune.frame_max)

    def _is_rabbitmq(self) -> bool:
        """Whether it is a RabbitMQ that this package serves."""
        said = cast("Any", self._connection).server_properties
        version = re.match(r"(\d+)\.(\d+)", str(said.get("version", "")))
        return (
            said.get("product") == "RabbitMQ" and version is not None and (int(version[1]), int(version[2])) >= (3, 10)
        )

    def check(self, queue_type: str | None) -> None:
        """Raises if the broker has no real quorum queues: it would drop messages that return to a full or missing queue."""
        if queue_type != "classic" and not self._is_rabbitmq():
            raise StrategyRefusedError(
                "waiting messages need quorum queues with at-least-once dead-lettering, and this broker may not have them; use RabbitMQ 3.10 or "
                "later, or `queue_type='classic'` (then messages that return to a full or missing queue are dropped)"
            )

    async def queue_type(self, queue: str) -> str | None:
        """The type of a queue, from the words in which it refuses to be consumed from an offset; ``None`` if it does not tell."""
        if not self._is_rabbitmq():
            return None
        try:
            async with self._channel() as channel:
                # A node can have another default (`default_consumer_prefetch`), and then a stream would be consumed.
                await channel.basic_qos(prefetch_count=0, timeout=_BROKER_TIMEOUT)
                await channel.basic_consume(
                    queue, _ignore_message, arguments={"x-stream-offset": "next"}, timeout=_BROKER_TIMEOUT
                )
        except aiormq.exceptions.ChannelPreconditionFailed as refusal:
            said = str(refusal)
            if "prefetch count is not set" in said:
                return "stream"
            found = re.search(r"of queue type rabbit_(\w+)_queue", said)
            return None if found is None else found[1]
        except aiormq.exceptions.AMQPError:
            return None
        return None

    @contextlib.asynccontextmanager
    async def _channel(self) -> AsyncIterator[AbstractChannel]:
        """A channel for one question: a refusal closes it."""
        channel = await self._connection.channel(publisher_confirms=False, timeout=_BROKER_TIMEOUT)
        try:
            yield channel
        finally:
            with contextlib.suppress(Exception):
                await channel.close()

    def has_declared(self, queue: str) -> bool:
        return queue in self._declared

    async def declare_queue(self, queue: Queue, *, create: bool) -> float:
        """Declares a queue, unless it is known. Says when a copy in it is safe."""
        name = queue.name
        async with self._locks.setdefault(name, asyncio.Lock()):
            if name not in self._declared or self._declared[name][0] != queue:
                try:
                    is_new = await self._declare(queue, create and queue.create)
                except (aiormq.exceptions.ChannelNotFoundEntity, aiormq.exceptions.ChannelPreconditionFailed) as error:
                    raise _declare_error(queue, error) from error
                except (aiormq.exceptions.ChannelAccessRefused, aiormq.exceptions.ChannelLockedResource) as error:
                    raise AccessRefusedError(
                        f"the user may not declare the queue `{name}` ({error}); grant `configure` on it, or declare it and set `declare` to False"
                    ) from error
                safe = _loop_time() + _SAFE_AGE
                is_old = create and not is_new and await self._is_marked_as_old(name)
                self._declared[name] = (queue, _loop_time() if is_old else safe)
            return self._declared[name][1]

    async def _declare(self, queue: Queue, create: bool) -> bool:
        """Says whether the queue is certainly new."""
        if not (create and queue.exact):
            try:
                async with self._channel() as channel:
                    await channel.queue_declare(queue.name, passive=True, timeout=_BROKER_TIMEOUT)
                return False
            except aiormq.exceptions.ChannelNotFoundEntity:
                if not create:
                    raise
        async with self._channel() as channel:
            await channel.queue_declare(
                queue.name, durable=True, arguments=cast("Any", queue.arguments), timeout=_BROKER_TIMEOUT
            )
        return not queue.exact

    async def _is_marked_as_old(self, queue: str) -> bool:
        """Whether the marker of a queue says that it is old (section 2 of PROTOCOL): it is bound, and that of the clock of new queues is not."""
        work = re.sub(r"\.(parked|retry\.\d+)$", "", queue)
        try:
            return (
                work != queue and await self._is_bound(queue) and not await self._is_bound(f"{work}.retry.80000000000")
            )
        except aiormq.exceptions.AMQPError:
            return False  # a permission is missing, or the exchange is somebody else's

    async def _is_bound(self, marker: str) -> bool:
        async with self._channel() as channel:
            await _declare_marker(channel, marker)
            try:
                await channel.exchange_delete(marker, if_unused=True, timeout=_BROKER_TIMEOUT)
            except aiormq.exceptions.ChannelPreconditionFailed:
                return True
        return False

    async def _mark_as_old(self, queue: str) -> None:
        """Marks a queue that is old, so that no other consumer has to wait for that."""
        with contextlib.suppress(Exception):  # others wait then
            try:
                async with self._channel() as channel:
                    await _declare_marker(channel, queue)
                    await channel.queue_bind(queue, queue, timeout=_BROKER_TIMEOUT)
            except aiormq.exceptions.ChannelAccessRefused:
                await self._is_bound(queue)  # which deletes it if it is not

    async def store(self, copy: Copy, queue: Queue, *, create: bool, urgent: bool) -> None:
        """Publishes a copy, and returns when it is safe. Raises if it may not be stored."""
        safe = await self.declare_queue(queue, create=create)
        is_young = safe > _loop_time()
        if not urgent:
            # Its original could not be acknowledged before, and if this process were killed, both would be there.
            await asyncio.sleep(max(0.0, safe - _loop_time()))
        await self._publish(copy)
        if (left := safe - _loop_time()) > 0:
            # The host may have died silently since: only an answer to a later question tells.
            await asyncio.sleep(left)
            async with self._channel() as channel:
                await channel.queue_declare(queue.name, passive=True, timeout=_BROKER_TIMEOUT)
        if is_young and create and queue.name not in self._marked:
            self._marked.add(queue.name)
            task = asyncio.ensure_future(self._mark_as_old(queue.name))  # nobody waits for that
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _publish(self, copy: Copy) -> None:
        channel = await self._open_publish_channel()
        async with self._one_per_message_id(copy.properties.get("message_id")):
            await self.unblocked()
            try:
                answer = await channel.basic_publish(
                    copy.body,
                    exchange=copy.exchange,
                    routing_key=copy.routing_key,
                    properties=_Properties(copy),
                    mandatory=copy.mandatory,
                )
            except aiormq.exceptions.DeliveryError as error:
                raise NotConfirmedError(
                    f"the broker refused a message for the queue `{copy.routing_key}`, which may be full"
                ) from error
        if isinstance(answer, DeliveredMessage):
            self._declared.pop(copy.routing_key, None)
            self._marked.discard(copy.routing_key)
            raise UnroutableError(f"the queue `{copy.routing_key}` was deleted")

    async def unblocked(self) -> None:
        """Returns when no alarm keeps the broker from reading, or when the connection is lost."""
        ready = asyncio.ensure_future(self._connection.ready())
        try:
            await asyncio.wait({ready, self._connection.closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()

    async def _open_publish_channel(self) -> AbstractChannel:
        async with self._channel_lock:
            if self._publish_channel is None or self._publish_channel.is_closed:
                self._publish_channel = await self._connection.channel(
                    publisher_confirms=True, on_return_raises=False, timeout=_BROKER_TIMEOUT
                )
            return self._publish_channel

    @contextlib.asynccontextmanager
    async def _one_per_message_id(self, message_id: str | None) -> AsyncIterator[None]:
        """Publishes messages with the same id one after the other: the client knows a returned message by its id only."""
        if not message_id:
            yield  # the client gives it one
            return
        lock, users = self._ids.get(message_id, (asyncio.Lock(), 0))
        self._ids[message_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._ids.pop(message_id)
            if users > 1:
                self._ids[message_id] = (lock, users - 1)


def _declare_error(queue: Queue, error: Exception) -> Exception:
    if isinstance(error, aiormq.exceptions.ChannelNotFoundEntity):
        return QueueNotFoundError(f"the queue `{queue.name}` does not exist; declare it, or set `declare` to True")
    return MismatchError(
        f"the queue `{queue.name}` exists with other arguments ({error}); use the same `queue_type` as its other consumers, or delete it when it is empty"
    )


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


async def _declare_marker(channel: AbstractChannel, name: str) -> None:
    await channel.exchange_declare(name, exchange_type="fanout", durable=True, internal=True, timeout=_BROKER_TIMEOUT)


async def _ignore_message(message: DeliveredMessage) -> None:
    """A consumer that no broker makes."""
