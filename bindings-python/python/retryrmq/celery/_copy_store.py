"""Stores copies of Celery's messages in the broker, and says when they are safe."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import import_module
from typing import Any
from urllib.parse import quote, urlencode

from .. import _logs, _native
from .._notifications import wait
from ..client import BlockingClient, QueueType, connect_blocking
from ..contract import Contract, Copy, Settlement
from ..errors import (
    BrokerTimeoutError,
    InvalidOptionError,
    InvalidTypeError,
    InvalidUrlError,
    RetryRmqError,
    TooLargeError,
)
from ..outcome import End

logger = _logs.logger("retryrmq.celery")
# Their types are not those that they really have, where they have any.
_Connection: Any = import_module("kombu").Connection
_compress: Any = import_module("kombu.compression").compress

#: A wait that is longer is one of several.
MAX_DELAY = 365 * 86400.0
#: A copy that takes longer is tried again.
TRY_TIMEOUT = 60.0
#: Between two tries, at most.
MAX_PAUSE = 60.0
#: Errors that another try does not fix.
PERMANENT_ERRORS = (InvalidOptionError, InvalidTypeError, InvalidUrlError, TooLargeError)

#: A failure: error, error type, stack.
Failure = tuple[str, str, str | None]
#: Decides what follows for a message of a queue. The task decides how often it is retried, so no count is too large for the contract's policy.
Decide = Callable[[Contract], Settlement]
_ENDLESS = "fixed(1s, retries=1000000)"

_TEXT_PROPERTIES = ("correlation_id", "reply_to", "message_id", "type", "user_id", "app_id")


class CopyStore:
    """The client of an application: one in each process, made when it is first needed."""

    def __init__(self, urls: Callable[[], str | Sequence[str]], app_version: str, queue_type: QueueType | None) -> None:
        self._urls, self._app_version = urls, app_version
        self._queue_type: QueueType | None = queue_type
        self.forget()

    def forget(self) -> None:
        """In a forked child: connections belong to the parent."""
        self._lock = threading.Lock()
        self._client: BlockingClient | None = None
        #: Of each queue, and for which size of frames.
        self._queues: dict[str, tuple[int, Contract, _native.CopyStore]] = {}

    def close(self) -> None:
        """Closes the client. Another one is made when it is needed."""
        with self._lock:
            client, self._client = self._client, None
            self._queues = {}
        if client is not None:
            client.close()

    def _connected(self) -> _native.Client:
        with self._lock:
            if self._client is None:
                self._client = connect_blocking(
                    self._urls(), app_version=self._app_version, queue_type=self._queue_type
                )
            return self._client._native

    def _begin(self, queue: str, decide: Decide) -> _native.Operation:
        client = self._connected()
        frame_max = client.frame_max  # of another node it may be another one
        with self._lock:
            known = self._queues.get(queue)
            if known is None or known[0] != frame_max:
                contract = Contract(
                    queue,
                    dlx=True,
                    retry=_ENDLESS,
                    queue_type=self._queue_type,
                    app_version=self._app_version,
                    frame_max=frame_max,
                )
                known = self._queues[queue] = frame_max, contract, client.copy_store(queue)
            _, contract, store = known
        copy = decide(contract)
        if not isinstance(copy, Copy) or copy._decision is None:
            raise TypeError(f"a task of `{queue}` was settled by {type(copy).__name__}, and a copy was expected")
        return store.store(copy._decision)

    def publish(self, message: Mapping[str, Any], delay: float, timeout: float) -> None:
        """Publishes to the queue that is the routing key, to be delivered after ``delay`` seconds."""
        self._retry_until_stored(lambda: self._connected().publish({**message, "delay": delay}), timeout)

    def store(self, queue: str, decide: Decide, timeout: float) -> None:
        """Stores the copy that ``decide`` chooses. Returns when it is safe. Tries again for ``timeout`` seconds."""
        self._retry_until_stored(lambda: self._begin(queue, decide), timeout)

    def store_once(self, queue: str, decide: Decide) -> None:
        """The same in one try. Raises what went wrong."""
        _wait_until_stored(self._begin(queue, decide), TRY_TIMEOUT)

    def _retry_until_stored(self, begin: Callable[[], _native.Operation], timeout: float) -> None:
        end, pause = time.monotonic() + timeout, 0.1
        while True:
            try:
                return _wait_until_stored(begin(), max(0.1, min(TRY_TIMEOUT, end - time.monotonic())))
            except PERMANENT_ERRORS:
                raise
            except RetryRmqError as error:
                if time.monotonic() + pause > end:
                    raise
                log_retry(error)
            time.sleep(pause)
            pause = min(MAX_PAUSE, pause * 2)


def log_retry(error: RetryRmqError) -> None:
    _logs.log(logger, logging.WARNING, "a copy is not stored yet, and is tried again: %s", error)


def _wait_until_stored(operation: _native.Operation, seconds: float) -> None:
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


def _plain_properties(properties: Mapping[str, Any], headers: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of py-amqp that a message keeps, except its expiration. Anybody may have written them."""
    kept: dict[str, Any] = {}
    for name in (*_TEXT_PROPERTIES, "content_type", "content_encoding"):
        if properties.get(name) is not None:
            kept[name] = str(properties[name])
    if "message_id" not in kept and isinstance(headers.get("id"), str) and len(headers["id"]) < 256:
        kept["message_id"] = headers["id"]  # the name by which `retryrmq parked` shows and takes it
    if properties.get("priority") is not None:
        kept["priority"] = min(255, max(0, int(properties["priority"])))
    if properties.get("timestamp") is not None:
        kept["timestamp"] = datetime.fromtimestamp(int(properties["timestamp"]), timezone.utc)
    return kept


def _encoded(body: Any) -> bytes:
    return body if isinstance(body, bytes) else str(body).encode("utf-8", "surrogateescape")


def publish_arguments(
    body: Any, properties: Mapping[str, Any], headers: Mapping[str, Any], routing_key: str
) -> dict[str, Any]:
    """A message to publish to the default exchange, for the native half. Properties are those of py-amqp."""
    message: dict[str, Any] = {
        "exchange": "",
        "routing_key": routing_key,
        "body": _encoded(body),
        "headers": {name: _aware(value) for name, value in headers.items()},
        "mandatory": True,
        "persistent": True,
        **_plain_properties(properties, headers),
    }
    if str(properties.get("expiration") or "").isdecimal():
        message["expiration"] = int(properties["expiration"]) / 1000
    return message


@dataclass(frozen=True)
class TaskMessage:
    """A message of a task, with the exchange and the routing key with which it came to its queue. Properties are those of py-amqp."""

    body: Any
    properties: Mapping[str, Any]
    headers: Mapping[str, Any]
    exchange: str
    routing_key: str

    def read(self, contract: Contract) -> _native.Message:
        """The message as the contract knows it. The counts in its headers are what the worker says."""
        properties = _plain_properties(self.properties, self.headers)
        if str(self.properties.get("expiration") or "").isdecimal():
            properties["expiration"] = str(self.properties["expiration"])
        return contract.read(
            _encoded(self.body),
            exchange=self.exchange,
            routing_key=self.routing_key,
            headers=self.headers,
            properties=properties,
        )

    def retried(self, delay: float, failure: Failure) -> Decide:
        """It failed, and comes back after ``delay`` seconds. Its ``x-retry-count`` says how often it failed before."""
        error, error_type, stack = failure
        return lambda contract: contract.ended(self.read(contract), ("retry", error, error_type, [], stack, delay))

    def deferred(self, delay: float) -> Decide:
        """It comes back after ``delay`` seconds, and has not failed."""
        return lambda contract: contract.ended(self.read(contract), ("defer", "", "", [], None, delay))

    def detoured(self) -> Decide:
        """It was not run, and comes back soon. Its ``x-retry-crashes`` is the count that it keeps."""
        return lambda contract: contract.detour(self.read(contract))

    def parked(self, reason: str, failure: Failure) -> Decide:
        """It is parked for this reason, a word of ``x-retry-parked-reason``."""
        error, error_type, stack = failure
        end: End = ("park", error, error_type, [], stack, None)
        return lambda contract: contract._park(self.read(contract), reason, end)


def received(message: Any, **changed: Any) -> TaskMessage:
    """A message that a worker received. Headers with the value ``None`` are kept so; names are written with ``_`` for ``-``."""
    body, headers = message.body, dict(message.headers)
    if headers.get("compression") and not message.errors:  # kombu has decompressed it
        body, _ = _compress(body, headers["compression"])
    headers.update({name.replace("_", "-"): value for name, value in changed.items()})
    delivery = message.delivery_info
    return TaskMessage(body, message.properties, headers, delivery.get("exchange", ""), delivery.get("routing_key", ""))


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


def broker_urls(app: Any) -> list[str]:
    """The addresses of an application's broker, as the native half writes them."""
    connection = app.connection_for_write()
    connections = [_Connection(url, ssl=connection.ssl) for url in connection.alt] or [connection]
    return [_broker_url(each, connection.login_method) for each in connections]


def _broker_url(connection: Any, login_method: str | None) -> str:
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
