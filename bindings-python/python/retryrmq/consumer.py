"""Consumers without an app: run a handler, or iterate over messages and settle them yourself."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator
from types import TracebackType

from ._async_only import AsyncOnly
from ._attempts import requeue_unstarted
from ._batch_workers import batched
from ._listeners import ListenerQueue, LoopListenerQueue, ThreadListenerQueue
from ._loop_workers import LoopWorkers
from ._native import Client as NativeClient
from ._native import Message, Operation, Subscription
from ._notifications import NotificationDispatcher, dispatcher
from ._thread_workers import ThreadWorkers, until_done
from ._unawaited import must_be_awaited
from .errors import ClosedError, InvalidTypeError
from .options import Plan
from .record import Stats

#: How long closing waits until the listener got the last events, in seconds.
_LISTENER_TIMEOUT = 1.0
#: How many messages an iteration takes at once. The others stay where they can be requeued.
_MAX_TAKEN = 16


class _ConsumerBase:
    """What both kinds of consumers share: a plan, and its subscription once there is one."""

    def __init__(self, native: NativeClient, plan: Plan) -> None:
        self._native = native
        self._plan = plan
        self._dispatcher: NotificationDispatcher = dispatcher()
        self._subscription: Subscription | None = None
        self._listener_queue: ListenerQueue | None = None
        #: The number of the listener, as long as events can come.
        self._listener: int | None = None
        #: What was taken and not begun, or not handed out to who iterates.
        self._unstarted: deque[Message] = deque()
        #: The subscription that is being made, which may take long.
        self._subscribing: Operation | None = None
        self._closed = False

    @property
    def queue(self) -> str:
        """The work queue."""
        return self._plan.queue

    def stats(self) -> Stats:
        """The counters of this queue since its client was made. All consumers of the queue on that client share them.

        Raises :class:`ClosedError` before the start.
        """
        return Stats(**self._opened().stats())

    def __repr__(self) -> str:
        state = "closed" if self._closed else "consuming" if self._subscription else "new"
        return f"<retryrmq.{type(self).__name__} queue={self.queue!r} {state}>"

    def _opened(self) -> Subscription:
        if self._subscription is None:
            raise ClosedError("this consumer is not consuming; use it in `async with`, or iterate over it")
        return self._subscription

    @property
    def _has_ended(self) -> bool:
        """Whether it was started and then closed."""
        return self._closed and self._subscription is not None

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ClosedError("this consumer is closed; create a new one with `consume`")

    def _subscribe(self, listener_queue: ListenerQueue | None) -> Operation:
        told = None
        if listener_queue is not None:
            self._listener_queue = listener_queue
            self._listener = self._dispatcher.add_listener(listener_queue)
            told = self._dispatcher.native, self._listener
        self._subscribing = self._native.subscribe(self._plan.native, told)
        return self._subscribing

    def _give_up_starting(self) -> None:
        if self._subscribing is not None:
            self._subscribing.give_up()

    def _subscribed(self, subscription: Subscription) -> Subscription:
        self._subscribing, self._subscription = None, subscription
        self._dispatcher.subscriptions[subscription] = weakref.ref(self._unstarted)
        if self._listener is not None:  # for consumers that are never closed
            weakref.finalize(subscription, self._dispatcher.remove_listener, self._listener).atexit = False
        return subscription

    def _next(self) -> Message | None:
        """What an iteration hands out next. The end may take it away first, on another thread."""
        try:
            return self._unstarted.popleft()
        except IndexError:
            return None

    def _end(self, abandon: bool) -> Subscription | None:
        """Starts to close. Messages that were taken and not handed out are requeued."""
        self._closed = True
        subscription = self._subscription
        if subscription is None:
            self._give_up_starting()
            return None
        subscription.close()
        requeue_unstarted(subscription, self._unstarted)
        if abandon:
            subscription.abandon()
        self._stop_listening()
        return subscription

    def _subscribe_failed(self) -> None:
        self._give_up_starting()
        self._subscribing = None
        if self._listener is not None:
            self._dispatcher.remove_listener(self._listener)

    def _stop_listening(self) -> None:
        """Stops listening once the consumer has ended; until then the listener still gets events."""
        if self._listener is not None and self._subscription is not None:
            number, self._listener = self._listener, None
            self._dispatcher.remove_listener_after(self._subscription.wait_closed(), number)


class Consumer(_ConsumerBase, AsyncOnly):
    """A consumer on an event loop.

    With a handler, ``await consumer.run()`` handles messages until :meth:`close`. Without one, iterate over messages and settle each::

        async with client.consume("orders", dlx=True) as consumer:
            async for msg in consumer:
                await msg.ack()

    Leaving the block drains: messages that you hold can still be settled within ``drain_timeout``. An exception that leaves the block does
    not drain: unsettled messages are delivered again.
    """

    _workers: LoopWorkers | ThreadWorkers | None = None

    def __init__(self, native: NativeClient, plan: Plan) -> None:
        super().__init__(native, plan)
        self._starting = asyncio.Lock()

    @must_be_awaited("consumer.start")
    async def start(self) -> Consumer:
        """Subscribes, and starts to handle messages if there is a handler.

        Raises :class:`StrategyRefusedError`, :class:`QueueNotFoundError`, :class:`MismatchError`, :class:`AccessRefusedError` or another
        :class:`RetryRmqError` if the broker refuses something. Then no message was taken.
        """
        async with self._starting:
            await self._start()
        return self

    async def _start(self) -> None:
        self._refuse_closed()
        if self._subscription is None:
            try:
                operation = self._subscribe(self._new_listener_queue())
                subscription = self._subscribed(await self._dispatcher.wait_async(operation))
            except BaseException:
                self._subscribe_failed()
                raise
            if self._closed:  # while it was starting
                subscription.close()
                await self.wait_closed()
                self._refuse_closed()
            if self._plan.handler is None:
                self._dispatcher.end_with_loop(subscription, None, self.queue)
            else:
                plan, source = self._plan, subscription
                if plan.native.batch is not None:
                    plan, source = batched(plan, subscription)
                if self._plan.is_async:
                    self._workers = LoopWorkers(plan, source, self._dispatcher, self._unstarted)
                    self._dispatcher.end_with_loop(subscription, self._workers, self.queue)
                else:
                    self._workers = ThreadWorkers(plan, source, self._dispatcher, self._unstarted)
                try:
                    self._workers.start()
                except BaseException:
                    await self.close()
                    raise

    def _new_listener_queue(self) -> ListenerQueue | None:
        listener = self._plan.on_event
        if listener is None:
            return None
        if self._plan.handler is None or self._plan.is_async:
            return LoopListenerQueue(listener, asyncio.get_running_loop())
        return ThreadListenerQueue(listener)

    @must_be_awaited("consumer.run")
    async def run(self) -> None:
        """Handles messages until the consumer is closed. If it is cancelled, it drains first.

        Returns at once if the consumer was started and closed before, for example by its own handler. Raises like :meth:`start`, the error with
        which the client ended by itself (``end_when_refused``), and :class:`ClosedError` if a bug in retryrmq ended the consumer.
        """
        if self._plan.handler is None:
            raise InvalidTypeError("this consumer has no handler to run; iterate over it, or pass one to `consume`")
        if not self._has_ended:
            await self.start()
        try:
            await self.wait_closed()
        except asyncio.CancelledError:
            await self.close()
            raise
        self._native.check_end()

    @must_be_awaited("consumer.wait_closed")
    async def wait_closed(self) -> None:
        """Waits until the consumer has ended. Does not close it."""
        if self._subscription is None:
            return
        if isinstance(self._workers, LoopWorkers):
            await self._workers.wait()
        else:
            await self._dispatcher.wait_async(self._subscription.wait_closed(), only_here=True)
            if self._workers is not None:
                await self._workers.wait_on_loop()
        self._stop_listening()
        if self._listener_queue is not None:
            await until_done(self._listener_queue.done, _LISTENER_TIMEOUT)

    @must_be_awaited("consumer.close")
    async def close(self) -> None:
        """Drains: takes no more messages, waits for running handlers up to ``drain_timeout``, and requeues the rest.

        A call from its own handler, or from a task of that handler, does not wait: the consumer ends after that handler.
        """
        self._start_drain()
        if self._end(abandon=False) is not None and not (self._workers is not None and self._workers.is_within):
            await self.wait_closed()

    def _start_drain(self) -> None:
        """Starts the drain that :meth:`close` waits for."""
        if self._workers is not None:
            self._workers.close()

    def stop(self) -> None:
        """Ends now. ``async def`` handlers are cancelled; ``def`` handlers keep running.

        Their unsettled messages are delivered again, which counts as a delivery.
        """
        if self._workers is not None:
            self._workers.stop()
        self._end(abandon=True)

    async def __aenter__(self) -> Consumer:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._workers is None:
            self._end(abandon=True)
            await self.wait_closed()
        else:
            await self.close()

    async def __aiter__(self) -> AsyncIterator[Message]:
        if self._plan.handler is not None:
            raise InvalidTypeError(
                "this consumer has a handler; call `run()`, or create one without a handler to iterate over"
            )
        await self.start()
        subscription = self._opened()
        while True:
            while (message := self._next()) is not None:
                yield message
            if self._closed:
                return
            self._unstarted.extend(subscription.take(_MAX_TAKEN))
            # It takes nothing, so a cancelled wait loses nothing.
            if not self._unstarted and not await self._dispatcher.wait_async(subscription.ready(), only_here=True):
                self._native.check_end()
                return


class BlockingConsumer(_ConsumerBase):
    """A consumer for a thread: ``run()`` its handler, or iterate over messages and settle each.

    ::

        with client.consume("orders", dlx=True) as consumer:
            for msg in consumer:
                msg.ack()
    """

    _workers: ThreadWorkers | None = None

    def __init__(self, native: NativeClient, plan: Plan) -> None:
        super().__init__(native, plan)
        self._starting = threading.Lock()

    def start(self) -> BlockingConsumer:
        """Subscribes, and starts to handle messages if there is a handler.

        Raises :class:`StrategyRefusedError`, :class:`QueueNotFoundError`, :class:`MismatchError`, :class:`AccessRefusedError` or another
        :class:`RetryRmqError` if the broker refuses something. Then no message was taken.
        """
        with self._starting:
            self._start()
        return self

    def _start(self) -> None:
        self._refuse_closed()
        if self._subscription is None:
            listener = self._plan.on_event
            try:
                operation = self._subscribe(None if listener is None else ThreadListenerQueue(listener))
                subscription = self._subscribed(self._dispatcher.wait(operation))
            except BaseException:
                self._subscribe_failed()
                raise
            if self._closed:  # while it was starting
                subscription.close()
                self._wait_closed(subscription)
                self._refuse_closed()
            if self._plan.handler is not None:
                plan, source = self._plan, subscription
                if plan.native.batch is not None:
                    plan, source = batched(plan, subscription)
                self._workers = ThreadWorkers(plan, source, self._dispatcher, self._unstarted)
                try:
                    self._workers.start()
                except BaseException:
                    self.close()
                    raise

    def run(self) -> None:
        """Handles messages until a handler or another thread closes the consumer. Ctrl-C drains, then raises ``KeyboardInterrupt``.

        Returns at once if the consumer was started and closed before. Raises like :meth:`start`, the error with which the client ended by
        itself (``end_when_refused``), and :class:`ClosedError` if a bug in retryrmq ended the consumer.
        """
        if self._plan.handler is None:
            raise InvalidTypeError("this consumer has no handler to run; iterate over it, or pass one to `consume`")
        with self._dispatcher.consumer_thread():
            try:
                # Within, because a handler may have begun before this returns.
                if not self._has_ended:
                    self.start()
                self._wait_closed(self._opened())
            except KeyboardInterrupt:
                self.close()
                raise
            self._native.check_end()

    def _wait_closed(self, subscription: Subscription) -> None:
        self._dispatcher.wait(subscription.wait_closed())
        if self._workers is not None:
            self._workers.wait()
        self._stop_listening()
        if self._listener_queue is not None:
            with contextlib.suppress(concurrent.futures.TimeoutError):
                self._listener_queue.done.result(_LISTENER_TIMEOUT)

    def close(self) -> None:
        """Drains: takes no more messages, waits for running handlers up to ``drain_timeout``, and requeues the rest.

        A call from its own handler does not wait: the consumer ends after that handler.
        """
        if self._workers is not None:
            self._workers.close()
        subscription = self._end(abandon=False)
        if subscription is not None and not (self._workers is not None and self._workers.is_within):
            self._wait_closed(subscription)

    def stop(self) -> None:
        """Ends now. Handlers keep running. Their unsettled messages are delivered again, which counts as a delivery."""
        if self._workers is not None:
            self._workers.stop()
        self._end(abandon=True)

    def __enter__(self) -> BlockingConsumer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._workers is None:
            subscription = self._end(abandon=True)
            if subscription is not None:
                self._wait_closed(subscription)
        else:
            self.close()

    def _take(self, subscription: Subscription) -> list[Message]:
        if self._dispatcher.is_of_greenlets:
            return self._dispatcher.take_messages(lambda: subscription.take(_MAX_TAKEN), subscription)
        return subscription.take_blocking(_MAX_TAKEN, 0.25)

    def __iter__(self) -> Iterator[Message]:
        if self._plan.handler is not None:
            raise InvalidTypeError(
                "this consumer has a handler; call `run()`, or create one without a handler to iterate over"
            )
        with self._dispatcher.consumer_thread():
            subscription = self.start()._opened()
            while True:
                while (message := self._next()) is not None:
                    yield message
                if self._closed:
                    return
                self._unstarted.extend(self._take(subscription))
                if not self._unstarted and subscription.is_closing:
                    self._native.check_end()
                    return
