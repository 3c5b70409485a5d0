"""Clients: one for event loops, one for threads, on the same connections."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, TypedDict

from . import _native
from ._asking import Asker
from ._async_only import AsyncOnly
from ._duration import Duration, seconds
from ._native import Operation
from ._pump import pump
from ._typing import Unpack
from .consumer import BlockingConsumer, Consumer
from .errors import InvalidOptionError, InvalidTypeError
from .login import Credentials, checked_credentials
from .options import (
    ConsumerOptions,
    Handler,
    checked_flag,
    checked_text,
    encoded,
    is_async,
    no_option,
    plan,
    refuse_without_handler,
)
from .parking import BlockingParkedMessages, ParkedMessages

#: The type of the queues in which messages wait and are parked.
QueueType = Literal["quorum", "classic"]


class PublishOptions(TypedDict, total=False):
    """What :meth:`Client.publish` takes beside the routing key and the body."""

    #: The exchange; the default exchange unless named, by which the routing key is the name of a queue.
    exchange: str
    #: The headers, by name.
    headers: Mapping[str, Any]
    #: Delivers the message later; only through the default exchange.
    delay: Duration
    #: Whether it is an error when no queue takes the message; on by default.
    mandatory: bool
    #: Whether the message survives a restart of the broker; on by default.
    persistent: bool
    #: The message's id, by which a redelivery of a handled message is recognised.
    message_id: str | None
    content_type: str
    content_encoding: str
    correlation_id: str
    reply_to: str
    #: The broker drops (or dead-letters) it when it has waited that long in a queue.
    expiration: Duration
    #: 0 to 255.
    priority: int
    #: With a time zone; AMQP keeps whole seconds.
    timestamp: datetime
    type: str
    app_id: str
    #: The broker refuses another name than that of the connection's user.
    user_id: str


_TEXTS = (
    "message_id",
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "type",
    "app_id",
    "user_id",
)


def outgoing(routing_key: str, body: Any, options: PublishOptions) -> dict[str, Any]:
    """A message for the native half; raises naming the option that cannot work."""
    known = PublishOptions.__optional_keys__
    unknown = options.keys() - known
    if unknown:
        raise no_option(min(unknown), sorted(known))
    checked_text("routing_key", routing_key)
    if isinstance(body, str):
        body = encoded("body", body)
    elif isinstance(body, bytearray | memoryview):
        body = bytes(body)
    elif not isinstance(body, bytes):
        raise InvalidTypeError(
            f"`body` must be bytes or str, not {type(body).__name__}; json.dumps() makes a str of most things"
        )
    message: dict[str, Any] = {
        "exchange": "",
        "mandatory": True,
        "persistent": True,
        **{name: value for name, value in options.items() if value is not None},
        "routing_key": routing_key,
        "body": body,
    }
    for name in ("exchange", *_TEXTS):
        if name in message:
            checked_text(name, message[name])
    for name in ("mandatory", "persistent"):
        if not isinstance(message[name], bool):
            raise InvalidTypeError(f"`{name}` must be True or False, not {type(message[name]).__name__}")
    for name in ("delay", "expiration"):
        if name in message:
            message[name] = seconds(message[name], name)
    if "priority" in message:
        priority = message["priority"]
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidTypeError(f"`priority` must be an int, not {type(priority).__name__}")
        if not 0 <= priority <= 255:
            raise InvalidOptionError(f"`priority` must be between 0 and 255, not {priority}")
    if "timestamp" in message and not isinstance(message["timestamp"], datetime):
        raise InvalidTypeError(f"`timestamp` must be a datetime, not {type(message['timestamp']).__name__}")
    if "headers" in message:
        if not isinstance(message["headers"], Mapping):
            raise InvalidTypeError(f"`headers` must be a mapping, not {type(message['headers']).__name__}")
        message["headers"] = dict(message["headers"])
    return message


class _Connected:
    """What both kinds of clients share."""

    def __init__(self, native: _native.Client) -> None:
        self._native = native

    @property
    def server(self) -> dict[str, str]:
        """What the broker said of itself: ``product`` and ``version``."""
        return self._native.server

    @property
    def reconnects(self) -> int:
        """How often a connection was re-made."""
        return self._native.reconnects

    def healthy(self) -> bool:
        """Whether both connections, the one that consumes and the one that publishes, are open: for a health check."""
        return self.trouble() is None

    def trouble(self) -> str | None:
        """Why a connection is not open: what the last try to re-make it met. ``None`` while all is well."""
        return self._native.trouble()

    def metrics_text(self) -> str:
        """All counters in the OpenMetrics text format, which Prometheus reads.

        Serve them as ``application/openmetrics-text; version=1.0.0; charset=utf-8``.
        """
        return self._native.metrics_text()

    def __repr__(self) -> str:
        return f"<retryrmq.{type(self).__name__} broker={' '.join(self._native.server.values())!r}>"


class Client(_Connected, AsyncOnly):
    """A connection to a broker, for an event loop: consumers, publishing and parked messages all start here.

    A lost connection is re-made in the background for as long as the client lives.
    """

    async def publish(self, routing_key: str, body: bytes | str, **options: Unpack[PublishOptions]) -> None:
        """Publishes a message and waits until the broker has confirmed it.

        Raises :class:`UnroutableError` when no queue takes it. After :class:`NotConfirmedError`,
        :class:`BrokerTimeoutError` or :class:`ConnectionLostError` it may or may not have been stored. Messages that are
        published one after the other are sent in that order, also when they are not awaited in between.
        """
        operation = self._native.publish(outgoing(routing_key, body, options))
        await pump().answer(operation)

    def consume(self, queue: str, handler: Handler | None = None, **options: Unpack[ConsumerOptions]) -> Consumer:
        """A consumer of ``queue``; nothing is asked of the broker before it is started, entered or iterated over."""
        if handler is None:
            refuse_without_handler(options)
        return Consumer(self._native, plan(queue, handler, options))

    def parked(self, queue: str) -> ParkedMessages:
        """The messages parked for ``queue``."""
        return ParkedMessages(self._native, queue)

    @property
    def blocking(self) -> BlockingClient:
        """The same connection for threads."""
        return BlockingClient(self._native)

    async def close(self) -> None:
        """Closes the connection. Consumers should be closed first; what they hold goes back to its queue."""
        await pump().answer(self._native.close())

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class BlockingClient(_Connected):
    """A connection to a broker, for threads. Safe to be used by several."""

    def publish(self, routing_key: str, body: bytes | str, **options: Unpack[PublishOptions]) -> None:
        """As :meth:`Client.publish`."""
        self._native.publish(outgoing(routing_key, body, options)).wait()

    def consume(
        self, queue: str, handler: Handler | None = None, **options: Unpack[ConsumerOptions]
    ) -> BlockingConsumer:
        """A consumer of ``queue``; nothing is asked of the broker before it is started, entered or iterated over."""
        if handler is not None and is_async(handler):
            raise InvalidTypeError("an `async def` handler needs an event loop; use retryrmq.connect, or an App")
        if handler is None:
            refuse_without_handler(options)
        return BlockingConsumer(self._native, plan(queue, handler, options))

    def parked(self, queue: str) -> BlockingParkedMessages:
        """The messages parked for ``queue``."""
        return BlockingParkedMessages(self._native, queue)

    def close(self) -> None:
        """Closes the connection. Consumers should be closed first; what they hold goes back to its queue."""
        self._native.close().wait()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Connecting(AsyncOnly, Coroutine[Any, Any, Client]):
    """A connection before it is made: await it, enter it with ``async with``, or make a task of it. Nothing is tried before."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._operation: Operation | None = None
        self._client: Client | None = None
        #: What a caller drives that takes this for a coroutine.
        self._driven: Coroutine[Any, Any, Client] | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connected().__await__()

    async def _connected(self) -> Client:
        if self._client is None:
            if self._operation is None:
                self._operation = self._address.begin(asyncio.get_running_loop())
            self._client = await connected(self._operation)
        return self._client

    def send(self, value: Any) -> Any:
        """As a coroutine has it, for ``asyncio.run`` and ``asyncio.create_task``."""
        if self._driven is None:
            self._driven = self._connected()
        return self._driven.send(value)

    def throw(self, *error: Any) -> Any:
        """As of a coroutine."""
        if self._driven is None:
            self._driven = self._connected()
        return self._driven.throw(*error)

    def close(self) -> None:
        """As of a coroutine."""
        if self._driven is not None:
            self._driven.close()

    async def __aenter__(self) -> Client:
        return await self._connected()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()


async def connected(operation: Operation) -> Client:
    """The client; to stop waiting for it ends the tries."""
    try:
        return Client(await pump().answer(operation))
    except asyncio.CancelledError:
        operation.give_up()
        raise


def _url_text(url: str | Sequence[str]) -> str:
    """One URL, or several as the native half reads them."""
    if isinstance(url, str):
        return checked_text("url", url)
    if isinstance(url, bytes | bytearray | memoryview) or not isinstance(url, Sequence):
        raise InvalidTypeError(f"`url` must be a str or a list of them, not {type(url).__name__}")
    return ",".join(checked_text("url", one) for one in url)


def broker_url(url: str | Sequence[str] | None) -> str:
    """The address that was given, or ``RETRYRMQ_URL``, or the broker on this machine; checked."""
    if url is None:
        # One that is empty is one that is not set, as in every language.
        url = os.environ.get("RETRYRMQ_URL", "").strip() or "amqp://localhost"
    text = _url_text(url)
    _native.check_url(text)
    return text


@dataclass(frozen=True)
class Address:
    """Where to connect, and how: everything that is known before it is tried, checked."""

    url: str = field(repr=False)  # with the password
    app_version: str
    queue_type: QueueType | None
    wait: bool
    end_when_refused: bool
    credentials: Credentials | None

    def begin(self, loop: asyncio.AbstractEventLoop | None) -> Operation:
        """Begins to connect; from an event loop that is not held up meanwhile, if there is one."""
        news = pump()
        asker = None
        if self.credentials is not None:
            asker = (news.native, news.asks(Asker(self.credentials, loop)))
        return _native.connect(self.url, self.app_version, self.queue_type, self.wait, self.end_when_refused, asker)


def address(
    url: str | Sequence[str] | None,
    app_version: str,
    queue_type: QueueType | None,
    wait: bool,
    end_when_refused: bool,
    credentials: Credentials | None,
) -> Address:
    """Raises naming the option that cannot work."""
    checked_text("app_version", app_version)
    if queue_type is not None:
        _native.check_queue_type(checked_text("queue_type", queue_type))
    checked_flag("wait", wait)
    checked_flag("end_when_refused", end_when_refused)
    if credentials is not None:
        checked_credentials(credentials)
    return Address(broker_url(url), app_version, queue_type, wait, end_when_refused, credentials)


def connect(
    url: str | Sequence[str] | None = None,
    *,
    app_version: str = "",
    queue_type: QueueType | None = None,
    wait: bool = False,
    end_when_refused: bool = False,
    credentials: Credentials | None = None,
) -> Connecting:
    """Connects to the broker at ``url`` (``amqp://user:password@host:5672/vhost``), or at ``RETRYRMQ_URL``.

    ::

        client = await retryrmq.connect("amqp://localhost")
        async with retryrmq.connect("amqp://localhost") as client: ...

    Of several hosts (``amqp://user:password@one,two,three/vhost``, or a list of URLs) any will do. ``app_version`` appears in
    the history of failed messages; ``queue_type`` is that of the queues in which messages wait and are parked, quorum unless it
    says classic. With ``wait`` a broker that cannot be reached yet is tried until it can; one that refuses is an error. With
    ``end_when_refused`` the client ends when the broker refuses its login or its virtual host after a connection was lost, and
    whatever runs its consumers raises that; without, it is tried for ever.

    ``credentials`` is a function, a ``def`` or an ``async def``, that returns a :class:`Login` or a tuple of user and password. It
    is asked at every connection, whatever the URL says, and again before its password ends. An ``async def`` runs on this event
    loop, a ``def`` on a thread. Where it raises, or has no answer within 20 seconds, the login fails: here with
    :class:`AuthenticationFailedError`, also with ``wait``; after a connection was lost it is tried again, also with
    ``end_when_refused``, and :meth:`Client.trouble` says why.
    """
    return Connecting(address(url, app_version, queue_type, wait, end_when_refused, credentials))


def connect_blocking(
    url: str | Sequence[str] | None = None,
    *,
    app_version: str = "",
    queue_type: QueueType | None = None,
    wait: bool = False,
    end_when_refused: bool = False,
    credentials: Credentials | None = None,
) -> BlockingClient:
    """Connects as :func:`connect`, for threads. An ``async def`` of ``credentials`` runs on an event loop of its own."""
    where = address(url, app_version, queue_type, wait, end_when_refused, credentials)
    return BlockingClient(where.begin(None).wait())
