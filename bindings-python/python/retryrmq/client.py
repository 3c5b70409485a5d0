"""Clients: one for event loops, one for threads, over the same connections."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, TypedDict, TypeVar, overload

from . import _native
from ._async_only import AsyncOnly
from ._credential_provider import CredentialProvider
from ._duration import Duration, seconds
from ._native import Message, Operation
from ._notifications import dispatcher
from ._notifications import wait as wait_for
from ._signatures import is_async
from ._typing import Unpack
from ._unawaited import must_be_awaited
from .consumer import BlockingConsumer, Consumer
from .credentials import Credentials, checked_credentials
from .errors import InvalidOptionError, InvalidTypeError
from .middleware import (
    NO_MIDDLEWARE,
    Middleware,
    Middlewares,
    Publishing,
    PublishMiddleware,
    around_publish,
    check_kinds,
    checked_middlewares,
)
from .options import (
    BodyHandler,
    ConsumerOptions,
    Handler,
    Plan,
    checked_flag,
    checked_text,
    encoded,
    no_option,
    plan,
    refuse_without_handler,
)
from .parking import BlockingParkedMessages, ParkedMessages

#: What a handler takes as the body. It has a bound so that type checkers find mistakes in a `lambda` that takes the message.
_Body = TypeVar("_Body", bound=object)

#: The type of the waiting and parking queues.
QueueType = Literal["quorum", "classic"]


class PublishOptions(TypedDict, total=False):
    """What :meth:`Client.publish` takes besides the routing key and the body."""

    #: The exchange. By default the default exchange, for which the routing key is the name of a queue.
    exchange: str
    #: The headers, by name.
    headers: Mapping[str, Any]
    #: Delivers the message after this time, at most 365 days. Only through the default exchange, and without ``expiration`` or the headers
    #: ``CC`` and ``BCC``.
    delay: Duration
    #: How long the call takes at most: it waits that long for a connection, for the end of a memory or disk alarm, and for the confirm. Then it
    #: raises :class:`BrokerTimeoutError`, and a message that was not sent yet will not be. By default it waits 5 seconds for a connection, and 20
    #: seconds in an alarm and for the confirm. While the broker confirms nothing, the 20 seconds double each time, up to 300.
    timeout: Duration
    #: Whether it is an error if no queue takes the message (AMQP ``mandatory``). On by default.
    mandatory: bool
    #: Whether the message survives a restart of the broker (AMQP ``delivery-mode`` 2). On by default.
    persistent: bool
    #: The message's id. A consumer recognises a redelivery of a handled message by it. At most 255 bytes; a longer id is an error.
    message_id: str | None
    #: A MIME type such as ``application/json``.
    content_type: str
    #: An encoding such as ``gzip``.
    content_encoding: str
    #: For replies: the id that links a reply to its request.
    correlation_id: str
    #: For replies: the queue that the reply goes to.
    reply_to: str
    #: After this time in a queue the broker drops or dead-letters the message. Rounded up to whole milliseconds, at most 3650 days.
    expiration: Duration
    #: 0 to 255.
    priority: int
    #: The time of publication, with a time zone. AMQP keeps whole seconds.
    timestamp: datetime
    #: The application's name for the kind of message.
    type: str
    #: The application's name.
    app_id: str
    #: Must be the name of the connection's user; the broker refuses any other.
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


#: The options that are no properties of a message.
_FIXED = ("exchange", "delay", "timeout", "mandatory", "persistent")
_PROPERTIES = PublishOptions.__optional_keys__ - {*_FIXED, "headers"}


def outgoing(routing_key: str, body: Any, options: PublishOptions) -> dict[str, Any]:
    """A message for the native half; raises naming the option that cannot work."""
    _check_known(options, PublishOptions.__optional_keys__)
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
    for name in ("delay", "timeout", "expiration"):
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


def _check_known(given: Mapping[str, Any], known: Collection[str]) -> None:
    unknown = given.keys() - known
    if unknown:
        raise no_option(min(unknown), sorted(known))


def _publishing(message: Mapping[str, Any], options: PublishOptions) -> Publishing:
    """A message for publish middleware. Its options are checked already."""
    given = {name: value for name, value in options.items() if value is not None}
    fixed = {name: given.pop(name) for name in _FIXED if name in given}
    return Publishing(message["routing_key"], message["body"], fixed, given)


def _publish_arguments(publishing: Publishing) -> dict[str, Any]:
    """The message that middleware has made of it, for the native half; raises naming the property that cannot work."""
    _check_known(publishing.properties, _PROPERTIES)
    options: Any = {**publishing._fixed, **publishing.properties, "headers": publishing.headers or None}
    return outgoing(publishing.routing_key, publishing.body, options)


async def _send_async(native: _native.Client, publishing: Publishing) -> None:
    await dispatcher().wait_async(native.publish(_publish_arguments(publishing)))


def _send(native: _native.Client, publishing: Publishing) -> None:
    wait_for(native.publish(_publish_arguments(publishing)))


class _ClientBase:
    """What both kinds of clients share."""

    #: How a message is published, with middleware around it. Made when it is needed, because the middleware may be for the other kind of
    #: client over the same connections.
    _cached_publisher: Callable[[Publishing], Any] | None = None

    def __init__(self, native: _native.Client, middleware: Middlewares = NO_MIDDLEWARE) -> None:
        self._native = native
        self._middleware = middleware

    def _publisher(
        self, send: Callable[[_native.Client, Publishing], Any], asynchronous: bool
    ) -> Callable[[Publishing], Any]:
        if self._cached_publisher is None:
            send_here = functools.partial(send, self._native)
            self._cached_publisher = around_publish(send_here, self._middleware.around_publishes, asynchronous)
        return self._cached_publisher

    @property
    def server(self) -> dict[str, str]:
        """What the broker said about itself when the client connected: ``product`` and ``version``."""
        return self._native.server

    @property
    def reconnects(self) -> int:
        """How often a connection of this client was lost and reconnected."""
        return self._native.reconnects

    def healthy(self) -> bool:
        """Whether both connections are open, the consuming and the publishing one, and the broker reads what is published.

        For a health check; nothing is sent to the broker. During a memory or disk alarm it is ``False`` once something was published.
        """
        return self.trouble() is None

    def trouble(self) -> str | None:
        """Why the client is not healthy: the error of the last attempt to reconnect, or that the broker reads nothing. ``None`` if it is."""
        return self._native.trouble()

    def metrics_text(self) -> str:
        """All metrics of this client in the OpenMetrics text format, which Prometheus reads.

        Serve them with the content type ``application/openmetrics-text; version=1.0.0; charset=utf-8``. The number of parked messages is
        the one at the previous call.
        """
        return self._native.metrics_text()

    def __repr__(self) -> str:
        return f"<retryrmq.{type(self).__name__} broker={' '.join(self._native.server.values())!r}>"


class Client(_ClientBase, AsyncOnly):
    """A client of one broker or cluster, for an event loop: it consumes, publishes and gives access to parked messages.

    It holds two connections, and reconnects each in the background when it is lost.
    """

    @must_be_awaited("client.publish", "client.blocking.publish")
    async def publish(self, routing_key: str, body: bytes | str, **options: Unpack[PublishOptions]) -> None:
        """Publishes a message and waits until the broker has confirmed it (publisher confirms).

        Raises :class:`UnroutableError` if no queue takes it; :class:`TooLargeError`, :class:`AccessRefusedError` or
        :class:`InvalidOptionError` if something must change first. It was not stored then. After :class:`NotConfirmedError`,
        :class:`BrokerTimeoutError` or :class:`ConnectionLostError` it may have been stored: publish it again. With ``delay``:
        :class:`QueueNotFoundError`, :class:`MismatchError` or :class:`StrategyRefusedError` if there is no queue to wait in; the message was
        not stored. After :meth:`close`: :class:`ClosedError`.

        Messages without a delay are sent in the order of the calls, even if the calls overlap.
        """
        message = outgoing(routing_key, body, options)
        if self._middleware.around_publishes:
            await self._publisher(_send_async, asynchronous=True)(_publishing(message, options))
        else:
            await dispatcher().wait_async(self._native.publish(message))

    @overload
    def consume(self, queue: str, handler: Handler | None = None, **options: Unpack[ConsumerOptions]) -> Consumer: ...
    @overload
    def consume(
        self, queue: str, handler: Callable[[Any, Message], Any], **options: Unpack[ConsumerOptions]
    ) -> Consumer: ...
    @overload
    def consume(self, queue: str, handler: Callable[[_Body], Any], **options: Unpack[ConsumerOptions]) -> Consumer: ...
    def consume(
        self, queue: str, handler: Handler | BodyHandler | None = None, **options: Unpack[ConsumerOptions]
    ) -> Consumer:
        """A consumer of ``queue``. Nothing is sent to the broker until it is started, entered or iterated over.

        Raises :class:`InvalidOptionError`, :class:`InvalidTypeError`, :class:`InvalidPolicyError`, or :class:`TooLargeError` for a queue name
        that is too long. A handler whose first parameter is annotated with another type than ``Message`` gets the body, decoded into it;
        see :data:`BodyHandler`.
        """
        if handler is None:
            refuse_without_handler(options)
        return self._consumer(plan(queue, handler, options, self._middleware.around_attempts))

    def _consumer(self, plan: Plan) -> Consumer:
        return Consumer(self._native, plan)

    def parked(self, queue: str) -> ParkedMessages:
        """The messages parked for the work queue ``queue``, in ``<queue>.parked``. Use it with ``async with``."""
        return ParkedMessages(self._native, queue)

    @property
    def blocking(self) -> BlockingClient:
        """A client for threads, over the same connections."""
        return BlockingClient(self._native, self._middleware)

    @must_be_awaited("client.close", "client.blocking.close")
    async def close(self) -> None:
        """Closes both connections. Close the consumers first, so that they drain: unsettled messages of open consumers are requeued.

        Waits up to 20 seconds for the confirms of publishes in progress, unless the connection is lost. During and after this call,
        :meth:`publish` raises :class:`ClosedError`.
        """
        await dispatcher().wait_async(self._native.close())

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class BlockingClient(_ClientBase):
    """A client of one broker or cluster, for threads. Several threads may use it at the same time."""

    def publish(self, routing_key: str, body: bytes | str, **options: Unpack[PublishOptions]) -> None:
        """Like :meth:`Client.publish`."""
        message = outgoing(routing_key, body, options)
        if self._middleware.around_publishes:
            self._publisher(_send, asynchronous=False)(_publishing(message, options))
        else:
            wait_for(self._native.publish(message))

    @overload
    def consume(
        self, queue: str, handler: Handler | None = None, **options: Unpack[ConsumerOptions]
    ) -> BlockingConsumer: ...
    @overload
    def consume(
        self, queue: str, handler: Callable[[Any, Message], Any], **options: Unpack[ConsumerOptions]
    ) -> BlockingConsumer: ...
    @overload
    def consume(
        self, queue: str, handler: Callable[[_Body], Any], **options: Unpack[ConsumerOptions]
    ) -> BlockingConsumer: ...
    def consume(
        self, queue: str, handler: Handler | BodyHandler | None = None, **options: Unpack[ConsumerOptions]
    ) -> BlockingConsumer:
        """A consumer of ``queue``. Nothing is sent to the broker until it is started, entered or iterated over.

        Raises :class:`InvalidOptionError`, :class:`InvalidTypeError`, :class:`InvalidPolicyError`, or :class:`TooLargeError` for a queue name
        that is too long. A handler whose first parameter is annotated with another type than ``Message`` gets the body, decoded into it;
        see :data:`BodyHandler`.
        """
        if handler is not None and is_async(handler):
            raise InvalidTypeError("an `async def` handler needs an event loop; use retryrmq.connect, or an App")
        if handler is None:
            refuse_without_handler(options)
        return self._consumer(plan(queue, handler, options, self._middleware.around_attempts))

    def _consumer(self, plan: Plan) -> BlockingConsumer:
        return BlockingConsumer(self._native, plan)

    def parked(self, queue: str) -> BlockingParkedMessages:
        """The messages parked for the work queue ``queue``, in ``<queue>.parked``. Use it with ``with``."""
        return BlockingParkedMessages(self._native, queue)

    def close(self) -> None:
        """Like :meth:`Client.close`."""
        wait_for(self._native.close())

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _ConnectAttempt:
    """One attempt to connect, which tasks of one event loop share. It is given up when none of them waits for it any more."""

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, Client]]) -> None:
        self.loop = asyncio.get_running_loop()
        # A task of its own: the end of a task that waits must not be the end of the attempt.
        self._task = self.loop.create_task(make(self.loop))
        self._waiting = 0

    @property
    def is_open(self) -> bool:
        """Whether further tasks may wait for it."""
        return bool(self._waiting) and not self._task.done()

    async def client(self) -> Client:
        self._waiting += 1
        try:
            return await asyncio.shield(self._task)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._task.cancel()  # does nothing if it is done


class Connecting(AsyncOnly, Coroutine[Any, Any, Client]):
    """A connection that is not made yet. Await it, enter it with ``async with``, or make a task of it. It connects only then.

    Any number of tasks may await it, and all get the same client. Cancelling one of them does not disturb the others; the connection attempt
    ends when the last waiting task is cancelled. After an error the next ``await`` tries again.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._attempt: _ConnectAttempt | None = None
        self._client: Client | None = None
        #: The coroutines of tasks that use this object as one.
        self._coroutines: dict[asyncio.Task[Any] | None, Coroutine[Any, Any, Client]] = {}

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connected().__await__()

    async def _connected(self) -> Client:
        if self._client is not None:
            return self._client
        attempt = self._attempt
        if attempt is None or not attempt.is_open or attempt.loop is not asyncio.get_running_loop():
            attempt = self._attempt = _ConnectAttempt(self._made)
        try:
            return await attempt.client()
        finally:
            if self._attempt is attempt and not attempt.is_open:
                self._attempt = None  # its error would keep alive what it used

    async def _made(self, loop: asyncio.AbstractEventLoop) -> Client:
        self._client = await self._address.connected(self._address.begin(loop))
        return self._client

    def _step(self, step: Callable[[Coroutine[Any, Any, Client]], Any]) -> Any:
        task = asyncio.current_task()
        if task not in self._coroutines:
            self._coroutines[task] = self._connected()
        try:
            return step(self._coroutines[task])
        except BaseException:  # by which a coroutine also returns
            self._coroutines.pop(task, None)
            raise

    def send(self, value: Any) -> Any:
        """The method of a coroutine, for ``asyncio.run`` and ``asyncio.create_task``."""
        return self._step(lambda driven: driven.send(value))

    def throw(self, *error: Any) -> Any:
        """The method of a coroutine."""
        return self._step(lambda driven: driven.throw(*error))

    def close(self) -> None:
        """The method of a coroutine."""
        while self._coroutines:
            self._coroutines.popitem()[1].close()

    async def __aenter__(self) -> Client:
        return await self._connected()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()


def _url_text(url: str | Sequence[str]) -> str:
    """One URL, or several in the form that the native half reads."""
    if isinstance(url, str):
        return checked_text("url", url)
    if isinstance(url, bytes | bytearray | memoryview) or not isinstance(url, Sequence):
        raise InvalidTypeError(f"`url` must be a str or a list of them, not {type(url).__name__}")
    return ",".join(checked_text("url", one) for one in url)


def broker_url(url: str | Sequence[str] | None) -> str:
    """The given URL, or ``RETRYRMQ_URL``, or the broker on this machine; checked."""
    if url is None:
        # An empty variable counts as not set, as in every language.
        url = os.environ.get("RETRYRMQ_URL", "").strip() or "amqp://localhost"
    text = _url_text(url)
    _native.check_url(text)
    return text


@dataclass(frozen=True)
class Address:
    """Where and how to connect, checked."""

    url: str = field(repr=False)  # with the password
    app_version: str
    queue_type: QueueType | None
    wait: bool
    end_when_refused: bool
    credentials: Credentials | None
    middleware: Middlewares

    def begin(self, loop: asyncio.AbstractEventLoop | None) -> Operation:
        """Starts to connect. ``loop`` is the event loop of an async ``credentials`` function; it is not blocked."""
        notifications = dispatcher()
        provider = None
        if self.credentials is not None:
            provider = (
                notifications.native,
                notifications.add_credential_provider(CredentialProvider(self.credentials, loop)),
            )
        return _native.connect(self.url, self.app_version, self.queue_type, self.wait, self.end_when_refused, provider)

    async def connected(self, operation: Operation) -> Client:
        """The client. Cancelling it stops the tries."""
        return Client(await dispatcher().wait_async(operation, only_here=True), self.middleware)


def address(
    url: str | Sequence[str] | None,
    app_version: str,
    queue_type: QueueType | None,
    wait: bool,
    end_when_refused: bool,
    credentials: Credentials | None,
    middleware: Sequence[Middleware] = (),
    publish_middleware: Sequence[PublishMiddleware] = (),
) -> Address:
    """Raises naming the option that cannot work."""
    checked_text("app_version", app_version)
    if queue_type is not None:
        _native.check_queue_type(checked_text("queue_type", queue_type))
    checked_flag("wait", wait)
    checked_flag("end_when_refused", end_when_refused)
    if credentials is not None:
        checked_credentials(credentials)
    around = checked_middlewares(middleware, publish_middleware)
    return Address(broker_url(url), app_version, queue_type, wait, end_when_refused, credentials, around)


def connect(
    url: str | Sequence[str] | None = None,
    *,
    app_version: str = "",
    queue_type: QueueType | None = None,
    wait: bool = False,
    end_when_refused: bool = False,
    credentials: Credentials | None = None,
    middleware: Sequence[Middleware] = (),
    publish_middleware: Sequence[PublishMiddleware] = (),
) -> Connecting:
    """Connects to the broker at ``url``, such as ``amqp://user:password@host:5672/vhost``.

    Without ``url`` it uses the environment variable ``RETRYRMQ_URL``, and without that ``amqp://localhost``.

    ::

        client = await retryrmq.connect("amqp://localhost")
        async with retryrmq.connect("amqp://localhost") as client: ...

    Any number of tasks may await the result; all get the same client. After an error the next ``await`` tries again.

    - ``url``: one URL, one with several hosts of a cluster (``amqp://user:password@one,two,three/vhost``), or a list of URLs. The client
      uses any host that answers.
    - ``app_version``: the version of your application, for the history of failed messages.
    - ``queue_type``: the type of the waiting and parking queues, ``quorum`` (the default) or ``classic``.
    - ``wait``: keeps trying while the broker cannot be reached. A broker that answers and refuses is an error at once.
    - ``end_when_refused``: ends the client when the broker refuses the login or the virtual host after a connection was lost. Its
      consumers then raise that error. Otherwise the client keeps trying.
    - ``credentials``: a ``def`` or ``async def`` that returns a :class:`Login` or a tuple of user and password. It replaces the login of the
      URL. It is called for every connection, and again before the password expires. An ``async def`` runs on this event loop, a ``def`` on
      a thread. If it raises, or does not answer within 20 seconds, the login fails: here with :class:`AuthenticationFailedError`, even
      with ``wait``. After a lost connection it is tried again, even with ``end_when_refused``, and :meth:`Client.trouble` says why.
    - ``middleware``: functions around every attempt of every handler, the outermost first; see :data:`Middleware`. They are outside those of
      a consumer. Iterating over a consumer has none.
    - ``publish_middleware``: functions around every :meth:`Client.publish`, the outermost first; see :data:`PublishMiddleware`.

    Raises :class:`InvalidUrlError`, :class:`UnreachableError`, :class:`AuthenticationFailedError`, :class:`VhostNotFoundError`,
    :class:`TlsFailedError` or :class:`BrokerTimeoutError`. Once connected, the client reconnects in the background.
    """
    return Connecting(
        address(url, app_version, queue_type, wait, end_when_refused, credentials, middleware, publish_middleware)
    )


def connect_blocking(
    url: str | Sequence[str] | None = None,
    *,
    app_version: str = "",
    queue_type: QueueType | None = None,
    wait: bool = False,
    end_when_refused: bool = False,
    credentials: Credentials | None = None,
    middleware: Sequence[Middleware] = (),
    publish_middleware: Sequence[PublishMiddleware] = (),
) -> BlockingClient:
    """Like :func:`connect`, for threads. An ``async def`` as ``credentials`` runs on an event loop of its own. Middleware must be a ``def``."""
    where = address(url, app_version, queue_type, wait, end_when_refused, credentials, middleware, publish_middleware)
    check_kinds(where.middleware)
    return BlockingClient(wait_for(where.begin(None), only_here=True), where.middleware)
