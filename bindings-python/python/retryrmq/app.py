"""The app: handlers by decorator, and one call that runs them all until a signal, then drains."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from . import _logs
from ._async_only import AsyncOnly
from ._greenlets import is_main_thread
from ._native import Operation
from ._notifications import logger
from ._typing import Unpack
from ._unawaited import must_be_awaited
from .client import BlockingClient, Client, PublishOptions, QueueType, address
from .consumer import Consumer
from .credentials import Credentials
from .errors import ClosedError, InvalidOptionError, InvalidTypeError
from .middleware import Middleware, PublishMiddleware
from .options import BodyHandler, ConsumerOptions, Handler, Plan, plan
from .parking import ParkedMessages
from .record import Stats

#: How long other tasks may take to end, in seconds, once they are cancelled.
_CANCEL_TIMEOUT = 5.0
#: If the event loop has not seen a signal for this many seconds, and another one comes, a handler blocks the loop.
_BLOCKED_AFTER = 0.5

_Handler = TypeVar("_Handler", bound=Handler | BodyHandler)

#: In the handlers of a simulation: its app, and what that app's client is there. Not an attribute of the app, which may be simulated
#: several times at once, or run meanwhile.
simulated_client: contextvars.ContextVar[tuple[App, Client] | None] = contextvars.ContextVar(
    "retryrmq.simulated_client", default=None
)


class App(AsyncOnly):
    """Consumers of one broker, by decorator.

    ::

        app = retryrmq.App("amqp://guest:guest@localhost")


        @app.consume("orders", dlx=True)
        async def handle(msg): ...


        app.run()

    The arguments are those of :func:`connect`, with one other default: ``wait`` is on, so the app keeps trying while the broker cannot be
    reached, even if the broker goes away again before a consumer has started. A broker that answers and refuses is an error. With
    ``end_when_refused`` the app also ends with that error when the broker refuses the login or the virtual host after a connection was lost;
    otherwise it keeps trying.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        app_version: str = "",
        queue_type: QueueType | None = None,
        wait: bool = True,
        end_when_refused: bool = False,
        credentials: Credentials | None = None,
        middleware: Sequence[Middleware] = (),
        publish_middleware: Sequence[PublishMiddleware] = (),
    ) -> None:
        self._address = address(
            url, app_version, queue_type, wait, end_when_refused, credentials, middleware, publish_middleware
        )
        self._plans: list[Plan] = []
        self._client: Client | None = None
        #: What connects instead, in a test.
        self._replacement: Callable[[], Client] | None = None
        #: The connection that is being made, which may take long.
        self._connecting: Operation | None = None
        #: The consumer that is being started, which may take long.
        self._starting: Consumer | None = None
        #: Where it runs, from the first step to the last.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        #: Whether it drains.
        self._ending = False
        self._consumers: list[Consumer] = []
        #: The consumers that `stats` shows, even while they drain; and their last numbers.
        self._stats_consumers: list[Consumer] = []
        self._last_stats: dict[str, Stats] = {}

    def __repr__(self) -> str:
        queues = [plan.queue for plan in self._plans]
        return f"<retryrmq.App queues={queues!r} {'running' if self._client is not None else 'not running'}>"

    def consume(self, queue: str, **options: Unpack[ConsumerOptions]) -> Callable[[_Handler], _Handler]:
        """Makes the decorated function the handler of ``queue``.

        If the handler returns, the message is acknowledged. If it raises, the message is retried (with ``dlx=True``), or treated as
        :class:`RetryAfter`, :class:`Park`, :class:`Defer` or :class:`Undecodable` says. An ``async def`` runs on the event loop, a ``def``
        on a thread. If the first parameter is annotated with another type than ``Message``, it gets the body, decoded into this type.
        :class:`ConsumerOptions` lists the options. They are checked at once. Raises :class:`InvalidOptionError`, :class:`InvalidTypeError`,
        :class:`InvalidPolicyError`, or :class:`TooLargeError` for a queue name that is too long.
        """
        plan(queue, None, options)

        def decorate(handler: _Handler) -> _Handler:
            if not callable(handler):
                raise InvalidTypeError(f"@app.consume decorates a function, not {type(handler).__name__}")
            if any(known.queue == queue for known in self._plans):
                raise InvalidOptionError(f"this app already has a handler for `queue` {queue!r}")
            self._plans.append(plan(queue, handler, options, self._address.middleware.around_attempts))
            return handler

        return decorate

    @property
    def client(self) -> Client:
        """The connected client, while the app runs. Raises :class:`ClosedError` otherwise.

        In a simulated handler it collects what is published; see :mod:`retryrmq.testing`.
        """
        simulated = simulated_client.get()
        if simulated is not None and simulated[0] is self:
            return simulated[1]
        if self._client is None:
            raise ClosedError("the app is not connected; run it, or enter it with `async with app`")
        return self._client

    @property
    def blocking(self) -> BlockingClient:
        """The connected client for threads, for ``def`` handlers, while the app runs."""
        return self.client.blocking

    @must_be_awaited("app.publish", "app.blocking.publish")
    async def publish(self, routing_key: str, body: bytes | str, **options: Unpack[PublishOptions]) -> None:
        """Like :meth:`Client.publish`, while the app runs."""
        await self.client.publish(routing_key, body, **options)

    def parked(self, queue: str) -> ParkedMessages:
        """The messages parked for ``queue``, while the app runs."""
        return self.client.parked(queue)

    def stats(self) -> dict[str, Stats]:
        """The counters of each queue. After the app has ended, the last ones."""
        return {consumer.queue: consumer.stats() for consumer in self._stats_consumers} or self._last_stats

    def healthy(self) -> bool:
        """Like :meth:`Client.healthy`. ``False`` before the app is connected and after its end."""
        return self.trouble() is None

    def trouble(self) -> str | None:
        """Like :meth:`Client.trouble`."""
        client = self._client
        return "the app is not connected" if client is None else client.trouble()

    def metrics_text(self) -> str:
        """Like :meth:`Client.metrics_text`, while the app runs."""
        return self.client.metrics_text()

    async def __aenter__(self) -> App:
        """Connects and starts every consumer. For an application that does more than consume."""
        if self._loop is not None:
            raise ClosedError("this app is already running")
        if not self._plans:
            raise InvalidOptionError("this app has no handlers; decorate one with @app.consume('orders')")
        self._loop, self._stopping, self._ending = asyncio.get_running_loop(), False, False
        try:
            self._client = await self._connect()
            for plan in self._plans:
                if self._stopping or self._client is None:
                    break
                await self._start(self._client._consumer(plan))
        except BaseException:
            await self._end()
            raise
        return self

    @contextlib.contextmanager
    def _replacing_connection(self, connect: Callable[[], Client]) -> Iterator[None]:
        """Within it, the app uses the client of ``connect`` instead of a connection of its own."""
        if self._replacement is not None or self._loop is not None:
            raise ClosedError("this app is already running, or another fake client replaces its connection")
        self._replacement = connect
        try:
            yield
        finally:
            self._replacement = None

    async def _connect(self) -> Client | None:
        """The client; ``None`` if the app was stopped before it was connected."""
        if self._replacement is not None:
            return self._replacement()
        self._connecting = self._address.begin(asyncio.get_running_loop())
        try:
            return await self._address.connected(self._connecting)
        except ClosedError:
            if self._stopping:
                return None
            raise
        finally:
            self._connecting = None

    async def _start(self, consumer: Consumer) -> None:
        self._starting = consumer
        try:
            await consumer.start()
        except ClosedError:
            if self._stopping:
                return
            raise
        finally:
            self._starting = None
        self._consumers.append(consumer)
        self._stats_consumers.append(consumer)
        if self._stopping:  # while it was starting
            consumer._start_drain()
        else:
            fields = _logs.about_queue(consumer.queue)
            _logs.log(logger, logging.INFO, "consuming %s", consumer.queue, fields=fields)

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """Drains every consumer and closes the connection."""
        await self._end()

    async def _end(self) -> None:
        self._ending = True
        consumers, self._consumers = self._consumers, []
        try:
            ended = await asyncio.gather(*(consumer.close() for consumer in consumers), return_exceptions=True)
            for error in ended:
                if isinstance(error, BaseException):
                    logger.error("a consumer did not end as it should", exc_info=error)
        except asyncio.CancelledError:
            for consumer in consumers:
                consumer.stop()
            raise
        finally:
            self._last_stats, self._stats_consumers = self.stats(), []
            self._loop = None
            # Only now: handlers may publish while they drain.
            client, self._client = self._client, None
            if client is not None:
                await client.close()

    def stop(self) -> None:
        """Asks the app to drain and end, even while it starts. May be called from any handler and any thread. Returns at once."""
        loop = self._loop
        if loop is None:
            return
        if _is_current_loop(loop):
            self._drain()
        else:
            with contextlib.suppress(RuntimeError):  # closed: it has ended
                loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._stopping = True
        if self._connecting is not None:
            self._connecting.give_up()
        if self._starting is not None:
            self._starting._give_up_starting()
        for consumer in self._consumers:
            consumer._start_drain()

    def _stop_now(self) -> None:
        self._stopping = True
        for consumer in self._consumers:
            consumer.stop()

    @must_be_awaited("app.serve")
    async def serve(self) -> None:
        """Handles messages until it is cancelled or :meth:`stop` is called, then drains. Installs no signal handlers.

        Raises like :func:`connect` and :meth:`Consumer.start`.
        """
        async with self:
            await self.wait_closed()

    @must_be_awaited("app.wait_closed")
    async def wait_closed(self) -> None:
        """Inside ``async with app``: waits until :meth:`stop` was called and every handler is done."""
        await asyncio.gather(*(consumer.wait_closed() for consumer in self._consumers))
        if self._client is not None and not self._stopping:
            self._client._native.check_end()

    def run(self, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
        """Handles messages until SIGINT or SIGTERM, then drains. A second signal stops at once, with ``SystemExit(128 + its number)``.

        ``loop_factory`` makes the event loop: ``app.run(loop_factory=uvloop.new_event_loop)``. Raises like :func:`connect` and
        :meth:`Consumer.start`, and :class:`InvalidTypeError` on an event loop that is running: await :meth:`serve` there.
        """
        if is_on_a_loop():
            raise InvalidTypeError(
                "`app.run()` runs an event loop of its own, and one is running here; in an `async def` write `await app.serve()`, or "
                "`async with app:` to do more than consume"
            )
        loop = (loop_factory or asyncio.new_event_loop)()
        try:
            asyncio.set_event_loop(loop)
            serving = loop.create_task(self.serve())
            with _signals(loop, self, serving) as ended_by:
                try:
                    loop.run_until_complete(serving)
                except asyncio.CancelledError:
                    if not ended_by:
                        raise
                except KeyboardInterrupt:
                    if not ended_by:
                        raise
                    # It interrupted a handler that blocked the event loop.
                    self._stop_now()
                    serving.cancel()
                    with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
                        loop.run_until_complete(serving)
            if ended_by:
                raise SystemExit(128 + ended_by[0])  # as a shell says of a program that a signal ended
        finally:
            try:
                _cancel_remaining_tasks(loop)
                loop.run_until_complete(loop.shutdown_asyncgens())
            finally:
                asyncio.set_event_loop(None)
                loop.close()


def is_on_a_loop() -> bool:
    """Whether an event loop is running in this thread."""
    return asyncio._get_running_loop() is not None


def _is_current_loop(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:  # none is
        return False


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, app: App, serving: asyncio.Task[None]) -> Iterator[list[int]]:
    """The first signal drains, the second one stops. The list gets the number of the signal that ended the app. If a handler blocks the event
    loop, so that it does not see signals, that handler is interrupted."""
    ended_by: list[int] = []
    handled: list[int] = []
    received: list[float] = []

    def on_signal(number: int) -> None:
        handled.append(number)
        if len(handled) == 1:
            logger.info("%s: draining; once more stops at once", signal.Signals(number).name)
            # If it is not connected yet, there is nothing to drain.
            if app._consumers or app._ending:
                app.stop()
            else:
                serving.cancel()
                ended_by.append(number)
            return
        ended_by.append(number)
        app._stop_now()
        serving.cancel()

    def interrupt_if_blocked(number: int, _: object) -> None:
        # Runs between two bytecodes of whatever this thread executes.
        if os.name != "posix":
            loop.call_soon_threadsafe(on_signal, number)
        received.append(time.monotonic())
        if len(received) > len(handled) + 1 and received[-1] - received[len(handled)] >= _BLOCKED_AFTER:
            ended_by.append(number)
            raise KeyboardInterrupt

    if not is_main_thread():
        yield ended_by
        return
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.getsignal(number)
        if os.name == "posix":
            loop.add_signal_handler(number, on_signal, number)
        # It replaces the event loop's own function, which does nothing: the event loop sees signals in another way.
        signal.signal(number, interrupt_if_blocked)
    try:
        yield ended_by
    finally:
        for number, handler in before.items():
            if os.name == "posix":
                loop.remove_signal_handler(number)
            if handler is not None:  # `None`: not installed by Python, which cannot restore it
                signal.signal(number, handler)


def _cancel_remaining_tasks(loop: asyncio.AbstractEventLoop) -> None:
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    if rest:
        # With a timeout: a task may ignore its cancellation.
        _, left = loop.run_until_complete(asyncio.wait(rest, timeout=_CANCEL_TIMEOUT))
        if left:
            logger.error("abandoned %d tasks that ignore their cancellation", len(left))
