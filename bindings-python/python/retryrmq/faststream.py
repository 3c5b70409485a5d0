"""Retries for FastStream on its own connection: ``pip install 'retryrmq[faststream]'``.

::

    from faststream import AckPolicy, FastStream
    from faststream.rabbit import RabbitBroker, RabbitQueue
    from retryrmq.faststream import RetryMiddleware

    retries = RetryMiddleware(dlx=True, retry="fixed(5s, retries=3)")
    broker = RabbitBroker("amqp://guest:guest@localhost", middlewares=[retries])
    app = FastStream(broker, on_startup=[retries.start])


    @broker.subscriber(RabbitQueue("orders", durable=True), ack_policy=AckPolicy.MANUAL)
    async def handle(order: dict) -> None: ...

If the handler returns, its message is acknowledged. If it raises, a copy waits in the broker and comes back at the tail of its queue.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Annotated, Any, Literal

try:
    from faststream import AckPolicy, BaseMiddleware, Context
    from faststream._internal.endpoint.subscriber.call_item import HandlerItem
    from faststream.exceptions import (
        AckMessage,
        HandlerException,
        IgnoredException,
        NackMessage,
        RejectMessage,
        SetupError,
        StopConsume,
    )
    from faststream.message import StreamMessage
    from faststream.rabbit import RabbitBroker
    from faststream.rabbit.subscriber.usecase import RabbitSubscriber
    from faststream.rabbit.testing import PatchedMessage
except ImportError as error:
    raise ImportError("retryrmq.faststream needs FastStream: pip install 'retryrmq[faststream]'") from error

from ._native import Message
from ._typing import Unpack
from .aio_pika import Attempt, Listener, RetryConsumer, ends_the_task
from .contract import ContractOptions
from .errors import InvalidOptionError, MismatchError
from .outcome import Defer, Park, RetryAfter, Undecodable, invalid_body

__all__ = ["CurrentMessage", "RetryMiddleware"]

_SIGNALS = (Defer, Park, RetryAfter, Undecodable)
#: The name of the message in FastStream's context.
_NAME = "retryrmq"
#: Annotates a parameter of a handler that is to get the ``retryrmq.Message``: its attempt, its history, where it was first published.
CurrentMessage = Annotated[Message, Context(_NAME)]


class RetryMiddleware:
    """Retries and parks the messages of all subscribers of a ``RabbitBroker`` or a ``RabbitRouter``. Options mean the same as in ``App.consume``.

    Give it to ``middlewares`` as the first one, and its :meth:`start` to ``FastStream(on_startup=…)``. The subscribers need
    ``ack_policy=AckPolicy.MANUAL``. For other options for some queues, give a router a middleware of its own.

    ``queue_type`` is the type of the waiting and parking queues, and ``app_version`` goes into the history of failures, as in ``connect``. With
    ``declare=False`` no queue is created. ``on_event`` is called on the event loop, and must not block it. ``invalid_body`` says what happens to a
    message whose body cannot be decoded, or does not fit the handler's parameters. FastStream declares the work queues, so ``work_queue`` is not
    an option here.

    Raises :class:`InvalidOptionError` or another error that names the option that cannot work.
    """

    def __init__(
        self,
        *,
        queue_type: str | None = None,
        app_version: str = "",
        declare: bool = True,
        on_event: Listener | None = None,
        invalid_body: Literal["park", "retry"] = "park",
        **options: Unpack[ContractOptions],
    ) -> None:
        if invalid_body not in ("park", "retry"):
            raise InvalidOptionError(f"`invalid_body` must be 'park' or 'retry', not {invalid_body!r}")
        #: Whether a message whose body is invalid is retried.
        self.retries_invalid = invalid_body == "retry"
        self._options: dict[str, Any] = {
            "queue_type": queue_type,
            "app_version": app_version,
            "declare": declare,
            "on_event": on_event,
            **options,
        }
        self._consumers: dict[str, RetryConsumer] = {}
        if "work_queue" in options:
            raise SetupError(
                "`work_queue` is not an option here: FastStream declares the queue, as your RabbitQueue says"
            )
        RetryConsumer("checked", **self._options)  # raises for options that cannot work with any queue

    def __call__(self, msg: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
        subscriber = context.get_local("handler_")
        if msg is None or not isinstance(subscriber, RabbitSubscriber) or not _is_delivered_to(subscriber, msg):
            return BaseMiddleware(msg, context=context)
        try:
            consumer = self._consumer(subscriber)
        except SetupError:
            msg.lock()  # or FastStream would reject it; now it stays unacknowledged, and comes again after a restart
            raise
        return _Delivery(msg, context=context, owner=self, consumer=consumer)

    def _consumer(self, subscriber: RabbitSubscriber) -> RetryConsumer:
        queue = subscriber.queue.add_prefix(subscriber._outer_config.prefix).name
        _check(subscriber, queue)  # another subscriber of this queue may have been right
        if queue not in self._consumers:
            self._consumers[queue] = RetryConsumer(queue, **self._options)
        return self._consumers[queue]

    async def start(self, app: Annotated[Any, Context("app")]) -> None:
        """Connects, checks every subscriber, and declares the parking queue and the waiting queues of each. Without it, that happens when a
        message first fails. Outside of a ``FastStream``, call it with the broker before ``broker.start()``.

        Raises ``faststream.exceptions.SetupError`` for a subscriber that cannot be retried, and errors of this package: :class:`MismatchError` if a
        waiting queue exists with other arguments or a queue is a stream, :class:`AccessRefusedError`, :class:`StrategyRefusedError` for a broker without quorum queues.
        """
        for broker in [app] if isinstance(app, RabbitBroker) else app.brokers:
            if not isinstance(broker, RabbitBroker):
                continue
            connection = await broker.connect()
            for subscriber in broker.subscribers:
                if (
                    self in subscriber._broker_middlewares
                    and subscriber.calls
                    and isinstance(subscriber, RabbitSubscriber)
                ):
                    consumer = self._consumer(subscriber)
                    if connection is not None:  # not that of a TestRabbitBroker
                        await consumer._start(connection.transport.connection, work_queue=False)  # type: ignore[union-attr]


def _is_delivered_to(subscriber: RabbitSubscriber, msg: Any) -> bool:
    """Whether a subscriber's own consumer got a message. Its handler may fetch others: answers, and messages of subscribers without a handler."""
    return isinstance(msg, PatchedMessage) or (
        msg.consumer_tag is not None and msg.consumer_tag == subscriber._consumer_tag
    )


def _check(subscriber: RabbitSubscriber, queue: str) -> None:
    if (subscriber.queue.arguments or {}).get("x-queue-type") == "stream":
        raise MismatchError(f"the queue `{queue}` is a stream, and its messages cannot be retried; use another queue")
    if subscriber.ack_policy is not AckPolicy.MANUAL:
        raise SetupError(
            f"the subscriber of `{queue}` acknowledges by itself ({subscriber.ack_policy}), so a message could be lost whose copy is not stored "
            f"yet; write `@broker.subscriber({queue!r}, ack_policy=AckPolicy.MANUAL)`"
        )


class _NotRun(IgnoredException):
    """Ends the handling of a message that must not run now."""

    def __str__(self) -> str:
        return "the message crashed its consumer before; it takes a detour or is parked"


class _Delivery(BaseMiddleware[Any, Any]):
    """The handling of one message."""

    def __init__(self, msg: Any, /, *, context: Any, owner: RetryMiddleware, consumer: RetryConsumer) -> None:
        super().__init__(msg, context=context)
        self._owner = owner
        self._consumer = consumer
        self._attempt: Attempt | None = None

    async def on_receive(self) -> None:
        if isinstance(self.msg, PatchedMessage):
            self._attempt = await self._consumer.begin_simulated(self.msg)
        else:
            self._attempt = await self._consumer.begin(self.msg)
        if self._attempt is None:
            raise _NotRun

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
        assert self._attempt is not None
        with self.context.scope(_NAME, self._attempt.message):
            return await call_next(msg)

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool | None:
        assert self._attempt is not None
        if exc_val is None:
            await self._attempt.end()
        elif isinstance(exc_val, HandlerException):
            self._attempt.abandon()
            return await self._settle_as_requested(exc_val)
        elif isinstance(exc_val, StopConsume | SystemExit):
            self._attempt.abandon()  # it did not fail, and nobody has handled it
            if not self.msg.processed:
                await self.msg.nack(requeue=True)
        elif ends_the_task(exc_val):
            self._attempt.abandon()
        else:
            await self._attempt.end(self._classified(exc_val))
            # What the handler asked for is no error for FastStream to log; a test sees it.
            return isinstance(exc_val, _SIGNALS) and not self._attempt.is_simulated
        return False

    async def _settle_as_requested(self, asked: HandlerException) -> bool:
        """What FastStream does with these for all other acknowledgement policies."""
        if isinstance(asked, AckMessage):
            settle = self.msg.ack
        elif isinstance(asked, NackMessage):
            settle = self.msg.nack
        elif isinstance(asked, RejectMessage):
            settle = self.msg.reject
        else:
            return False  # a skipped message is left as it is
        if not self.msg.processed:
            await settle(**asked.extra_options)
        return True

    def _classified(self, error: BaseException) -> BaseException:
        """The error, or that the body is invalid: it could not be decoded, or it does not fit the handler's parameters."""
        if not _is_decode_error(error, self.msg) and not _is_parameter_error(error):
            return error
        kinds = [kind.__name__ for kind in type(error).__mro__[1:] if kind is not object]
        return invalid_body(_error_without_body(error), type(error).__name__, kinds, self._owner.retries_invalid)


def _is_decode_error(error: BaseException, msg: Any) -> bool:
    """Whether a parser or a decoder of FastStream raised it for this message. A filter or another middleware may have asked for the body."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is StreamMessage.decode.__code__ and frame.f_locals["self"].raw_message is msg:
            return True
        if frame.f_code is HandlerItem.is_suitable.__code__ and "message" not in frame.f_locals:
            return frame.f_locals["msg"] is msg
    return False


def _is_parameter_error(error: BaseException) -> bool:
    """Whether a validator raised it that made the handler's parameters. FastDepends calls handlers and dependencies by its ``utils``."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if module == "fast_depends.utils":
            return False
        if module.startswith("fast_depends.") and module.endswith(".serializer"):
            return True
    return False


def _error_without_body(error: BaseException) -> str:
    """What is wrong with a body. A validator's own text quotes it."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    try:
        fields: Any = errors(include_input=False)
        return "; ".join(f"{'.'.join(map(str, it['loc']))}: {it['msg']}" for it in fields)
    except Exception:
        return ""
