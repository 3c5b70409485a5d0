"""Handlers at work: on the event loop, or on threads.

Messages are taken from the core in batches that grow while handlers are quick, so that a fast handler is not slowed down by
the way to its messages, and a slow one never has messages wait behind it that somebody else could handle.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, cast

from . import outcome
from ._native import Message, Operation, Subscription
from ._pump import Pump
from .options import Plan

logger = logging.getLogger("retryrmq.handler")

#: As many messages are taken at once at most.
_MOST = 64
#: A batch that took longer was too large.
_QUICK = 0.001
#: As many acknowledgements are handed over at once at most.
_ACKS = 32
#: Between two looks at the end, for a thread that waits.
_SLICE = 0.25
#: As long may handlers take to end, in seconds, once they are cancelled.
GRACE = 1.0
#: After as many messages in a row, the event loop has its turn.
_STRETCH = 32


def failed(plan: Plan, message: Message, error: BaseException) -> None:
    """Ends an attempt that raised. Never raises: a worker that ended by it would leave its messages behind."""
    may_park = message._may_park()
    end = outcome.judged(error, plan.fatal, kinds=plan.native.has_rules, stack=may_park)
    try:
        message._settle(end)
    except BaseException as trouble:
        end = outcome.undecided(error, trouble)
        message._settle(end)
    with contextlib.suppress(BaseException):  # a filter of somebody's logging may raise
        _tell_failed(plan, message, error, end, may_park)


def _tell_failed(plan: Plan, message: Message, error: BaseException, end: outcome.End, may_park: bool) -> None:
    if end[0] == "defer":
        logger.debug("%s: %r is deferred", plan.queue, message)
        return
    if end[0] == "retry" and not may_park:
        logger.info("%s: %r failed: %s", plan.queue, message, end[1])
        return
    what = "is given up by its handler" if end[0] == "park" else "failed"
    # A handler that says why by itself needs no trace.
    bare = isinstance(error, outcome.Park) and error.__cause__ is None
    trace = None if bare else (type(error), error, outcome.trace_of(error))
    logger.warning("%s: %r %s: %s", plan.queue, message, what, end[1], exc_info=trace)


def _late(plan: Plan, message: Message) -> None:
    end = outcome.too_late(cast("float", plan.native.handler_timeout))
    message._settle(end)
    with contextlib.suppress(BaseException):
        logger.warning("%s: %r failed: %s", plan.queue, message, end[1])


class _Batches:
    """How many messages to take next."""

    __slots__ = ("_full", "_taken_at", "size")

    def __init__(self) -> None:
        self.size = 1
        self._full = False
        self._taken_at = 0.0

    def took(self, count: int) -> None:
        now = time.monotonic()
        if self._full and now - self._taken_at < _QUICK:
            self.size = min(self.size * 2, _MOST)
        elif now - self._taken_at >= _QUICK:
            self.size = max(self.size // 2, 1)
        self._full = count == self.size
        self._taken_at = now


class LoopWorkers:
    """The handlers of one consumer on an event loop.

    Workers are tasks that take one message after the other. A second one is only woken while the handler of the first
    waits for something, so handlers that are done at once cost no switching at all.
    """

    def __init__(self, plan: Plan, subscription: Subscription, pump: Pump) -> None:
        assert plan.handler is not None
        self._plan = plan
        self._handler = cast("Callable[[Message], Awaitable[Any]]", plan.handler)
        self._subscription = subscription
        self._pump = pump
        self._limit = plan.native.handler_timeout
        self._most = plan.native.concurrency
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._batches = _Batches()
        self._ready: deque[Message] = deque()
        self._acks: list[Message] = []
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening = False
        self._nudged = False
        self._ended = False
        self._stopped = False
        #: When what has begun must be done.
        self._deadline: float | None = None
        self._all_gone: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        self._spawn()

    def close(self) -> None:
        """No more messages; what has begun may finish."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._plan.native.drain_timeout
        self._subscription.close()
        self._return_the_unstarted()

    def stop(self) -> None:
        """The end, now."""
        self._deadline = 0.0
        self._subscription.abandon()
        self._ready.clear()
        self._cancel(None)

    async def wait(self) -> None:
        """Until every handler is done and everything is settled; after the drain without those that are not."""
        closed = asyncio.ensure_future(self._pump.answer(self._subscription.wait_closed()))
        try:
            await asyncio.wait((closed, self._all_gone), return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                # A handler whose message was settled before it was done, by itself or by the clock, is still to be waited for.
                await self._leave()
            else:
                self._hand_over()
            await closed
        finally:
            closed.cancel()

    async def _leave(self) -> None:
        """The subscription is no more: what is left of the drain is for handlers, and then they are cancelled."""
        self._end()
        if self._deadline is None:
            self._deadline = time.monotonic() + self._plan.native.drain_timeout
        left = await self._left(self._deadline - time.monotonic())
        if left and not self._stopped:
            logger.warning(
                "%s: %d handlers are not done within `drain_timeout`; they are cancelled", self._plan.queue, len(left)
            )
            self._cancel(asyncio.current_task())
            left = await self._left(GRACE)
            if left:
                logger.error(
                    "%s: %d handlers would not be cancelled; they are left behind", self._plan.queue, len(left)
                )
        elif left:
            await self._left(GRACE)

    async def _left(self, seconds: float) -> set[asyncio.Task[None]]:
        """The handlers that are not done after so many seconds; the one that asks cannot be waited for."""
        tasks = self._tasks - {cast("asyncio.Task[None] | None", asyncio.current_task())}
        if tasks:
            _, tasks = await asyncio.wait(tasks, timeout=max(seconds, 0.0))
        return tasks

    def _cancel(self, spared: asyncio.Task[Any] | None) -> None:
        self._stopped = True
        for task in self._tasks:
            if task is not spared:
                task.cancel()

    def _return_the_unstarted(self) -> None:
        if self._ready:
            self._subscription.give_back(list(self._ready))
            self._ready.clear()

    def _spawn(self) -> None:
        # A context of its own for every worker, so that what a handler sets is gone with it.
        task = self._context.copy().run(self._loop.create_task, self._work())
        self._tasks.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() and not self._stopped:
            self.stop()
        elif not task.cancelled() and task.exception() is not None:
            logger.error("a worker of %s ended", self._plan.queue, exc_info=task.exception())
        if not (self._ended or self._stopped):
            self._spawn()
        elif not self._tasks and not self._all_gone.done():
            self._all_gone.set_result(None)

    def _next(self) -> Message | None:
        if not self._ready:
            if self._ended or self._subscription.is_closing:
                return None  # after the end was asked for, nothing new begins
            batch = self._subscription.take(self._batches.size)
            if not batch:
                return None
            self._batches.took(len(batch))
            self._ready.extend(batch)
        return self._ready.popleft()

    async def _work(self) -> None:
        context = contextvars.copy_context()
        task = asyncio.current_task()
        turns = 0
        while not self._stopped:
            message = self._next()
            if message is None:
                if self._ended:
                    return
                turns = 0
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                self._listen()
                await waiter
                continue
            if not self._nudged:
                self._nudged = True
                self._loop.call_soon(self._nudge)
            await self._attempt(message, task)
            if contextvars.copy_context() != context or _is_cancelled(task):
                return  # the next worker starts afresh
            turns += 1
            if turns % _STRETCH == 0:
                await asyncio.sleep(0)

    async def _attempt(self, message: Message, task: asyncio.Task[None] | None) -> None:
        if self._limit is None:
            try:
                await self._handler(message)
            except BaseException as error:
                if self._is_the_end(error, task):
                    raise
                failed(self._plan, message, error)
            else:
                self._acked(message)
            return
        late = False

        def too_late() -> None:
            nonlocal late
            late = True
            _late(self._plan, message)
            if task is not None:
                task.cancel()

        timer = self._loop.call_later(self._limit, too_late)
        try:
            await self._handler(message)
        except BaseException as error:
            if late:
                _uncancel(task)
            elif self._is_the_end(error, task):
                raise
            else:
                failed(self._plan, message, error)
        else:
            if not late:
                self._acked(message)
        finally:
            timer.cancel()

    def _is_the_end(self, error: BaseException, task: asyncio.Task[None] | None) -> bool:
        """Whether the handler was cancelled from outside, by the end of the event loop for example."""
        return self._stopped or (isinstance(error, asyncio.CancelledError) and _is_cancelled(task))

    def _acked(self, message: Message) -> None:
        acks = self._acks
        if not acks:
            self._loop.call_soon(self._hand_over)
        acks.append(message)
        if len(acks) >= _ACKS:
            self._subscription.ack(acks)
            # The call that was asked for finds what comes after these.
            acks.clear()

    def _hand_over(self) -> None:
        if self._acks:
            self._subscription.ack(self._acks)
            self._acks.clear()

    def _nudge(self) -> None:
        """While a handler waits: another worker, if there is something for it to do, or as soon as there is."""
        self._nudged = False
        if self._stopped or self._ended or not (self._idle or len(self._tasks) < self._most):
            return
        message = self._next()
        if message is None:
            self._listen()
            return
        self._ready.appendleft(message)
        self._wake()

    def _wake(self) -> None:
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        if len(self._tasks) < self._most:
            self._spawn()

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._pump.when_done(self._subscription.ready(), self._arrived, self._subscription.abandon)

    def _arrived(self, operation: Operation) -> None:
        self._listening = False
        if operation.result():
            self._wake()
            return
        self._end()

    def _end(self) -> None:
        self._ended = True
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)
        self._idle.clear()
        self._return_the_unstarted()


def _is_cancelled(task: asyncio.Task[None] | None) -> bool:
    """A handler that cancelled its own task would have the next one cancelled (Python 3.11 and later can tell)."""
    cancelling = getattr(task, "cancelling", None)
    return bool(cancelling is not None and cancelling())


def _uncancel(task: asyncio.Task[None] | None) -> None:
    uncancel = getattr(task, "uncancel", None)
    if uncancel is not None:
        uncancel()


#: As many threads may be stuck in handlers past their time, for each one that is wanted, before no more are started.
_STUCK = 8


class _Turn:
    """What a thread handles right now, and until when it may."""

    __slots__ = ("deadline", "message")

    def __init__(self, message: Message, limit: float) -> None:
        self.message = message
        self.deadline = time.monotonic() + limit


class ThreadWorkers:
    """The handlers of one consumer on threads of their own.

    A handler past ``handler_timeout`` has failed, but no thread can be stopped: another one takes its place, and it ends
    when its handler does.
    """

    def __init__(self, plan: Plan, subscription: Subscription) -> None:
        assert plan.handler is not None
        self._plan = plan
        self._handler = plan.handler
        self._subscription = subscription
        self._limit = plan.native.handler_timeout
        self._context = contextvars.copy_context()
        #: Whoever takes a turn out of here, its thread or the watch, ends the attempt.
        self._turns: dict[threading.Thread, _Turn] = {}
        self._stuck = 0
        #: Places that nobody took when their threads got stuck.
        self._vacant = 0
        self._counting = threading.Lock()
        # Alone and without a limit, a thread may take more than it is about to handle.
        alone = plan.native.concurrency == 1 and self._limit is None
        self._most = _MOST if alone else 1
        self._ended = threading.Event()

    def start(self) -> None:
        for _ in range(self._plan.native.concurrency):
            self._spawn()
        if self._limit is not None:
            threading.Thread(target=self._watch, name="retryrmq-limits", daemon=True).start()

    def close(self) -> None:
        """No more messages; what has begun may finish."""
        self._subscription.close()

    def stop(self) -> None:
        """The end, now. A thread that handles a message cannot be stopped; what it holds is the broker's again."""
        self._subscription.abandon()

    def _spawn(self) -> None:
        # Daemons: a handler that never returns must not keep the process alive after its drain.
        threading.Thread(target=self._work, name=f"retryrmq-{self._plan.queue}", daemon=True).start()

    def _work(self) -> None:
        subscription, batches = self._subscription, _Batches()
        while True:
            batch = subscription.take_blocking(min(batches.size, self._most), _SLICE)
            batches.took(len(batch))
            if batch and subscription.is_closing:
                subscription.give_back(batch)
            elif batch:
                if self._limit is None:
                    self._handle_all(batch)
                elif not self._handle_in_time(batch[0], self._limit):
                    return
            elif subscription.is_closing:
                self._ended.set()
                return

    def _handle_all(self, batch: list[Message]) -> None:
        subscription = self._subscription
        acks: list[Message] = []
        for index, message in enumerate(batch):
            if subscription.is_closing:  # then nothing new begins
                subscription.give_back(batch[index:])
                break
            error = self._attempt(message)
            if error is None:
                acks.append(message)
                if len(acks) < _ACKS:
                    continue
            if acks:
                subscription.ack(acks)
                acks.clear()
            if error is not None:
                failed(self._plan, message, error)
        if acks:
            subscription.ack(acks)

    def _handle_in_time(self, message: Message, limit: float) -> bool:
        """Whether this thread is still wanted: nobody has taken its place, or there is another one."""
        me = threading.current_thread()
        self._turns[me] = _Turn(message, limit)
        error = self._attempt(message)
        if self._turns.pop(me, None) is None:
            with self._counting:
                self._stuck -= 1
                wanted = self._vacant > 0
                self._vacant -= wanted
            return wanted
        if error is None:
            self._subscription.ack([message])
        else:
            failed(self._plan, message, error)
        return True

    def _attempt(self, message: Message) -> BaseException | None:
        try:
            # A context of its own for every message, so that what a handler sets is gone with it.
            result = self._context.copy().run(self._handler, message)
            if result is not None:
                refuse_result(result)
        except BaseException as error:
            return error
        return None

    def _watch(self) -> None:
        step = max(0.01, min(_SLICE, cast("float", self._limit) / 4))
        while not self._ended.wait(step):
            now = time.monotonic()
            for thread, turn in list(self._turns.items()):
                if now < turn.deadline or self._turns.pop(thread, None) is None:
                    continue
                self._replace()
                _late(self._plan, turn.message)

    def _replace(self) -> None:
        """Another thread for one that is stuck; or its place stays empty until one of them is back."""
        with self._counting:
            self._stuck += 1
            stuck = self._stuck
            if stuck <= _STUCK * self._plan.native.concurrency:
                with contextlib.suppress(RuntimeError):  # the machine has no more threads
                    self._spawn()
                    return
            self._vacant += 1
        with contextlib.suppress(BaseException):
            logger.error("%s: %d threads are stuck in handlers; no more are started", self._plan.queue, stuck)


def refuse_result(result: Any) -> None:
    """A ``def`` that returns a coroutine or a generator: nothing would ever run it."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError("the handler is a `def` that returned an awaitable, which nobody awaits; write `async def`")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError("the handler returned a generator, which nobody runs; it must do its work when it is called")
