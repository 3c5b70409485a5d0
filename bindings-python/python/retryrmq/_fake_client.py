"""A client without a broker, for tests of what publishes and consumes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import copy
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from types import MappingProxyType, TracebackType
from typing import Any, cast

from . import _native
from ._simulation import (
    CurrentAttempt,
    DoneOperation,
    Published,
    Simulated,
    as_published,
    plan_of,
    run_simulation,
)
from ._thread_workers import until_done
from ._typing import Unpack
from ._unawaited import must_be_awaited
from .app import App, is_on_a_loop, simulated_client
from .client import BlockingClient, Client, PublishOptions
from .consumer import BlockingConsumer, Consumer
from .errors import ClosedError, InvalidTypeError
from .middleware import Middleware, PublishMiddleware, checked_middlewares
from .options import Plan
from .record import Stats

_CLOSED = "the client is closed; connect a new one"

#: The attempt in whose handler this code runs.
_attempt: contextvars.ContextVar[CurrentAttempt | None] = contextvars.ContextVar("retryrmq.fake_attempt", default=None)
#: The deliveries in whose handlers this code runs.
_deliveries: contextvars.ContextVar[tuple[object, ...]] = contextvars.ContextVar("retryrmq.fake_deliveries", default=())


class _FakeBroker:
    """What all connections of a fake client share."""

    def __init__(self) -> None:
        self.published: list[Published] = []
        self.publish_error: Exception | None = None
        self.consumers: list[_FakeClosing] = []
        self.replaced: list[App] = []
        #: Held while a consumer begins, ends or gets a delivery: threads and event loops share the consumers.
        self.lock = threading.Lock()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def count(self, queue: str, result: Simulated) -> None:
        counts = self._counts[queue]
        for attempt in result.attempts:
            counts["delivered"] += 1
            counts["failed"] += attempt.became not in ("acked", "deferred")
            counts[attempt.became] += 1

    def begin_delivery(self, queue: str, delivery: object) -> _FakeClosing | None:
        """The consumer of the queue; its end waits for the delivery from now on. ``None`` if no consumer of the queue runs."""
        with self.lock:
            consumer = next((consumer for consumer in self.consumers if consumer._plan.queue == queue), None)
            if consumer is not None:
                consumer._running.add(delivery)
            return consumer

    def stats(self, queue: str) -> Stats:
        return Stats(**{counter.name: self._counts[queue][counter.name] for counter in fields(Stats)})


class _FakeNative:
    """The native client of a fake one."""

    server: Mapping[str, str] = MappingProxyType({"product": "fake", "version": _native.VERSION})
    reconnects = 0

    def __init__(self, broker: _FakeBroker) -> None:
        self.broker = broker
        self._is_closed = False

    def publish(self, message: dict[str, Any]) -> DoneOperation:
        if self._is_closed:
            raise ClosedError(_CLOSED)
        sent, delay = as_published(message)
        if self.broker.publish_error is not None:
            raise self.broker.publish_error
        attempt = _attempt.get()
        if attempt is not None:
            attempt.keep(sent, delay)
        index, at = (None, timedelta()) if attempt is None else (attempt.index, attempt.at)
        self.broker.published.append(Published(index, at, sent, delay))
        return DoneOperation()

    def close(self) -> DoneOperation:
        with self.broker.lock:
            self._is_closed = True
            own = [consumer for consumer in self.broker.consumers if consumer._native is self]
        for consumer in own:
            consumer._end(abandon=False)
        return DoneOperation()

    def trouble(self) -> str | None:
        if self._is_closed:
            return _CLOSED
        return None if self.broker.publish_error is None else str(self.broker.publish_error)

    def check_end(self) -> None: ...

    def metrics_text(self) -> str:
        return "# EOF\n"

    def __getattr__(self, name: str) -> Any:
        raise ClosedError(f"`{name}` needs a broker, and a fake client has none")


class _FakeClosing:
    """What both kinds of consumers share: how they end, and what they count."""

    _native: Any
    _plan: Plan
    _closed: bool
    #: Done when it takes nothing more; ``None`` before its start.
    _closing: concurrent.futures.Future[None] | None = None
    #: Done when it takes nothing more and no delivery runs, or when nobody waits for those that run.
    _drained: concurrent.futures.Future[None]
    #: The deliveries that run.
    _running: set[object]
    #: When the drain ends.
    _deadline = 0.0

    def _begin(self) -> None:
        if self._plan.handler is None:
            raise InvalidTypeError("a fake client delivers only to a handler; pass one to `consume`")
        with self._broker.lock:
            if self._closed or self._closing is not None:
                return
            if self._native._is_closed:
                raise ClosedError(_CLOSED)
            self._closing, self._drained, self._running = (
                concurrent.futures.Future(),
                concurrent.futures.Future(),
                set(),
            )
            self._broker.consumers.append(self)

    def _end(self, abandon: bool) -> None:
        with self._broker.lock:
            self._closed = True
            if self._closing is None:
                return
            if not self._closing.done():
                self._broker.consumers.remove(self)
                self._deadline = time.monotonic() + self._plan.native.drain_timeout
                self._closing.set_result(None)
            self._check_drained(abandon)

    def _end_delivery(self, delivery: object) -> None:
        with self._broker.lock:
            self._running.discard(delivery)
            self._check_drained(abandon=False)

    def _check_drained(self, abandon: bool) -> None:
        """The caller holds the lock."""
        if self._closed and (abandon or not self._running) and not self._drained.done():
            self._drained.set_result(None)

    @property
    def _is_within(self) -> bool:
        """Whether its handler, or a task of it, runs here: it cannot wait for its own end."""
        return self._closing is not None and not self._running.isdisjoint(_deliveries.get())

    def _drain_left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    @property
    def _has_ended(self) -> bool:
        return self._closed and self._closing is not None

    def stats(self) -> Stats:
        if self._closing is None:
            raise ClosedError("this consumer is not consuming; use it in `async with`, or iterate over it")
        return self._broker.stats(self._plan.queue)

    @property
    def _broker(self) -> _FakeBroker:
        return cast("_FakeBroker", self._native.broker)


class _FakeConsumer(_FakeClosing, Consumer):
    """Its handler gets what is delivered between its start and its end."""

    async def _start(self) -> None:
        self._refuse_closed()
        self._begin()
        self._refuse_closed()  # closed meanwhile, on another thread

    @must_be_awaited("consumer.wait_closed")
    async def wait_closed(self) -> None:
        if self._closing is not None:
            await until_done(self._closing, None)
            await until_done(self._drained, self._drain_left())

    @must_be_awaited("consumer.close")
    async def close(self) -> None:
        self._end(abandon=False)
        if not self._is_within:
            await self.wait_closed()

    def _start_drain(self) -> None:
        self._end(abandon=False)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _FakeBlockingConsumer(_FakeClosing, BlockingConsumer):
    """Its handler gets what is delivered between its start and its end."""

    def _start(self) -> None:
        self._refuse_closed()
        self._begin()
        self._refuse_closed()  # closed meanwhile, on another thread

    def run(self) -> None:
        try:
            if not self._has_ended:
                self.start()
            self._wait_until_drained()
        except KeyboardInterrupt:
            self.close()
            raise

    def close(self) -> None:
        self._end(abandon=False)
        if not self._is_within:
            self._wait_until_drained()

    def _wait_until_drained(self) -> None:
        if self._closing is not None:
            self._closing.result()
            with contextlib.suppress(concurrent.futures.TimeoutError):
                self._drained.result(self._drain_left())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _connection(broker: _FakeBroker) -> _native.Client:
    return cast("_native.Client", _FakeNative(broker))


class _FakeBlockingClient(BlockingClient):
    def _consumer(self, plan: Plan) -> BlockingConsumer:
        return _FakeBlockingConsumer(self._native, plan)


class FakeClient(Client):
    """A client without a broker, for tests: it keeps what is published, and delivers messages to handlers.

    It is a :class:`Client`, so it fits wherever one is expected; :attr:`blocking` is its :class:`BlockingClient`. It refuses the same
    arguments with the same errors. What is published is confirmed at once, whether or not such a queue exists, and reaches no handler::

        fake = FakeClient()
        await accept_order(fake, order)
        assert fake.published[0].message.json() == {"id": 7}

    Only :meth:`deliver` calls handlers: those of its own consumers, and those of an app in :meth:`replace`. There are no parked messages to
    browse, and no consumers to iterate over.

    ``middleware`` and ``publish_middleware`` are those of :func:`connect`.
    """

    def __init__(
        self, *, middleware: Sequence[Middleware] = (), publish_middleware: Sequence[PublishMiddleware] = ()
    ) -> None:
        self._fake = _FakeBroker()
        super().__init__(_connection(self._fake), checked_middlewares(middleware, publish_middleware))

    def _consumer(self, plan: Plan) -> Consumer:
        return _FakeConsumer(self._native, plan)

    @property
    def blocking(self) -> BlockingClient:
        """A client for threads, with the same messages and handlers."""
        return _FakeBlockingClient(self._native, self._middleware)

    @property
    def published(self) -> list[Published]:
        """The published messages, in their order. May be cleared."""
        return self._fake.published

    @property
    def publish_error(self) -> Exception | None:
        """What every publish raises, such as ``UnreachableError("no broker")``; ``None`` if the broker confirms all. Meanwhile the client is
        not healthy."""
        return self._fake.publish_error

    @publish_error.setter
    def publish_error(self, error: Exception | None) -> None:
        if error is not None and not isinstance(error, Exception):
            raise InvalidTypeError(f"`publish_error` must be an exception or None, not {error!r}")
        self._fake.publish_error = error

    @contextlib.contextmanager
    def replace(self, app: App) -> Iterator[FakeClient]:
        """Within it, ``app`` connects to this client instead of a broker, as often as it is entered or run, and :meth:`deliver` knows its handlers."""
        if not isinstance(app, App):
            raise InvalidTypeError(f"`app` must be an App, not {type(app).__name__}")

        def connected() -> Client:
            client = copy.copy(self)
            client._native, client._middleware, client._cached_publisher = (
                _connection(self._fake),
                app._address.middleware,
                None,
            )
            return client

        with app._replacing_connection(connected):
            self._fake.replaced.append(app)
            try:
                yield self
            finally:
                self._fake.replaced.remove(app)

    @must_be_awaited("fake.deliver", "fake.deliver_blocking")
    async def deliver(self, queue: str, body: bytes | str, **options: Unpack[PublishOptions]) -> Simulated:
        """Runs the handler of ``queue`` on a message until the message has ended, with the real policy, and without waiting.

        It is :func:`simulate` for one message: only the broker is simulated, and the clock jumps to the next attempt. The arguments are those
        of :meth:`publish`. The handler runs here, on this event loop. Raises :class:`InvalidOptionError` if no consumer of the queue runs
        and no replaced app has a handler for it. Closing a consumer waits for its running deliveries up to ``drain_timeout``.
        """
        message = {**options, "body": body}
        delivery = object()
        consumer = self._fake.begin_delivery(queue, delivery)
        try:
            return await self._deliver(queue, message, consumer, delivery)
        finally:
            if consumer is not None:
                consumer._end_delivery(delivery)

    async def _deliver(self, queue: str, message: Any, consumer: _FakeClosing | None, delivery: object) -> Simulated:
        apps = {id(plan): app for app in self._fake.replaced for plan in app._plans}
        if consumer is None:
            known = [consumer._plan for consumer in tuple(self._fake.consumers)]
            known += [plan for app in self._fake.replaced for plan in app._plans]
            plan = plan_of(queue, known, "the fake client")
        else:
            plan = consumer._plan
        app = apps.get(id(plan))

        def enter(attempt: CurrentAttempt) -> None:
            _attempt.set(attempt)
            _deliveries.set((*_deliveries.get(), delivery))
            if app is not None:  # which need not run
                simulated_client.set((app, app._client or self))

        result = await run_simulation(plan, [message], enter)
        self._fake.count(queue, result)
        return result

    def deliver_blocking(self, queue: str, body: bytes | str, **options: Unpack[PublishOptions]) -> Simulated:
        """Like :meth:`deliver`, for a test that is not a coroutine, on an event loop of its own. Raises :class:`InvalidTypeError` on a running
        event loop."""
        if is_on_a_loop():
            raise InvalidTypeError(
                "`deliver_blocking` runs an event loop of its own, and one is running here; in an `async def` write `await fake.deliver(…)`"
            )
        return asyncio.run(self.deliver(queue, body, **options))
