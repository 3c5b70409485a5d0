"""Stores copies of Celery's messages in the broker, and says when they are safe."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from importlib import import_module
from typing import Any
from urllib.parse import quote, urlencode

from .. import _logs, _native
from .._pump import wait
from ..client import BlockingClient, QueueType, connect_blocking
from ..errors import (
    BrokerTimeoutError,
    InvalidOptionError,
    InvalidTypeError,
    InvalidUrlError,
    RetryRmqError,
    TooLargeError,
)

logger = _logs.logger("retryrmq.celery")
# Their types are not those that they really have, where they have any.
_Connection: Any = import_module("kombu").Connection
_compress: Any = import_module("kombu.compression").compress

#: A wait that is longer is one of several.
LONGEST = 365 * 86400.0
#: A copy that takes longer is tried again.
ONE_TRY = 60.0
#: Between two tries, at most.
LONGEST_PAUSE = 60.0
#: Trying again does not help.
HOPELESS = (InvalidOptionError, InvalidTypeError, InvalidUrlError, TooLargeError)

#: A failure: error, error type, stack.
Why = tuple[str, str, str | None]

_TEXTS = ("correlation_id", "reply_to", "message_id", "type", "user_id", "app_id")


class Copies:
    """The client of an application: one in each process, made when it is first needed."""

    def __init__(self, urls: Callable[[], str | Sequence[str]], app_version: str, queue_type: QueueType | None) -> None:
        self._urls, self._app_version = urls, app_version
        self._queue_type: QueueType | None = queue_type
        self.forget()

    def forget(self) -> None:
        """In a forked child: connections belong to the parent."""
        self._lock = threading.Lock()
        self._client: BlockingClient | None = None
        self._retriers: dict[str, _native.Retrier] = {}

    def close(self) -> None:
        """Closes the client. Another one is made when it is needed."""
        with self._lock:
            client, self._client = self._client, None
            self._retriers = {}
        if client is not None:
            client.close()

    def _connected(self) -> _native.Client:
        with self._lock:
            if self._client is None:
                self._client = connect_blocking(
                    self._urls(), app_version=self._app_version, queue_type=self._queue_type
                )
            return self._client._native

    def _retrier(self, queue: str) -> _native.Retrier:
        client = self._connected()
        with self._lock:
            if queue not in self._retriers:
                self._retriers[queue] = client.retrier(queue)
            return self._retriers[queue]

    def publish(self, message: Mapping[str, Any], delay: float, patience: float) -> None:
        """Publishes to the queue that is the routing key, to be delivered after ``delay`` seconds."""
        self._until_stored(lambda: self._connected().publish({**message, "delay": delay}), patience)

    def store(self, queue: str, begin: Callable[[_native.Retrier], _native.Operation], patience: float) -> None:
        """Stores the copy that ``begin`` makes. Returns when it is safe. Tries again for ``patience`` seconds."""
        self._until_stored(lambda: begin(self._retrier(queue)), patience)

    def store_once(self, queue: str, begin: Callable[[_native.Retrier], _native.Operation]) -> None:
        """The same in one try. Raises what went wrong."""
        _stored(begin(self._retrier(queue)), ONE_TRY)

    def _until_stored(self, begin: Callable[[], _native.Operation], patience: float) -> None:
        end, pause = time.monotonic() + patience, 0.1
        while True:
            try:
                return _stored(begin(), max(0.1, min(ONE_TRY, end - time.monotonic())))
            except HOPELESS:
                raise
            except RetryRmqError as error:
                if time.monotonic() + pause > end:
                    raise
                not_yet(error)
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)


def not_yet(error: RetryRmqError) -> None:
    _logs.log(logger, logging.WARNING, "a copy is not stored yet, and is tried again: %s", error)


def _stored(operation: _native.Operation, seconds: float) -> None:
    if not _is_done(operation, seconds):
        operation.give_up()
        raise BrokerTimeoutError("the broker did not confirm the copy in time")


def _is_done(operation: _native.Operation, seconds: float) -> bool:
    """Waits. Raises the operation's error."""
    if wait(operation, seconds) is not None:
        return True
    if not operation.done():
        return False
    try:
        operation.result()  # it ended just after the wait
    except RuntimeError as error:
        if isinstance(error, RetryRmqError):
            raise
        # The wait has taken the answer, which is None.
    return True


def outgoing(
    body: Any,
    properties: Mapping[str, Any],
    headers: Mapping[str, Any],
    exchange: str,
    routing_key: str,
) -> dict[str, Any]:
    """A message for the native half. Properties are those of py-amqp."""
    message: dict[str, Any] = {
        "exchange": exchange,
        "routing_key": routing_key,
        "body": body if isinstance(body, bytes) else str(body).encode("utf-8", "surrogateescape"),
        "headers": {name: _aware(value) for name, value in headers.items()},
        "mandatory": True,
        "persistent": True,
    }
    for name in (*_TEXTS, "content_type", "content_encoding"):
        if properties.get(name) is not None:
            message[name] = str(properties[name])
    if "message_id" not in message and isinstance(headers.get("id"), str) and len(headers["id"]) < 256:
        message["message_id"] = headers["id"]  # the name by which `retryrmq parked` shows and takes it
    if properties.get("priority") is not None:
        message["priority"] = min(255, max(0, int(properties["priority"])))
    if properties.get("timestamp") is not None:
        message["timestamp"] = datetime.fromtimestamp(int(properties["timestamp"]), timezone.utc)
    if str(properties.get("expiration") or "").isdecimal():
        message["expiration"] = int(properties["expiration"]) / 1000
    return message


def received(message: Any, **changed: Any) -> dict[str, Any]:
    """A message that a worker received. Headers with the value ``None`` are kept so; names are written with ``_`` for ``-``."""
    body, headers = message.body, dict(message.headers)
    if headers.get("compression") and not message.errors:  # kombu has decompressed it
        body, _ = _compress(body, headers["compression"])
    headers.update({name.replace("_", "-"): value for name, value in changed.items()})
    delivery = message.delivery_info
    return outgoing(body, message.properties, headers, delivery.get("exchange", ""), delivery.get("routing_key", ""))


def is_temporary(queue: Any) -> bool:
    """Whether it goes with its worker, like the queue of a broadcast. A queue of ours for it would stay."""
    return bool(queue.auto_delete or queue.exclusive)


def _aware(value: Any) -> Any:
    """py-amqp reads times without a zone, which are in UTC."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=timezone.utc)
    if isinstance(value, Mapping):
        return {name: _aware(each) for name, each in value.items()}
    return [_aware(each) for each in value] if isinstance(value, list | tuple) else value


def urls_of(app: Any) -> list[str]:
    """The addresses of an application's broker, as the native half writes them."""
    connection = app.connection_for_write()
    one_by_one = [_Connection(url, ssl=connection.ssl) for url in connection.alt] or [connection]
    return [_url(each, connection.login_method) for each in one_by_one]


def _url(connection: Any, login_method: str | None) -> str:
    info = connection.info()
    if info["transport"] not in ("amqp", "pyamqp", "amqps", "librabbitmq"):
        raise InvalidUrlError(
            f"retryrmq.celery works with RabbitMQ, and the broker of this application is {info['transport']}"
        )
    query: dict[str, str] = {}
    scheme = "amqps" if info["ssl"] or info["transport"] == "amqps" else "amqp"
    if isinstance(info["ssl"], Mapping):
        names = {"ca_certs": "cacertfile", "certfile": "certfile", "keyfile": "keyfile"}
        query = {names[name]: str(value) for name, value in info["ssl"].items() if name in names and value}
    if login_method == "EXTERNAL":
        query["auth_mechanism"] = "external"
    password = info["password"]() if callable(info["password"]) else info["password"]
    login = f"{quote(info['userid'] or '', safe='')}:{quote(password or '', safe='')}"
    host = f"[{info['hostname']}]" if ":" in info["hostname"] else info["hostname"]
    tail = f"?{urlencode(query)}" if query else ""
    return f"{scheme}://{login}@{host}:{info['port']}/{quote(info['virtual_host'], safe='')}{tail}"
