"""Runs handlers on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, cast

from . import _log_queue, _logs, _native, _result_check
from ._attempts import (
    BLOCKED_AFTER,
    CANCEL_GRACE,
    FAULT_PAUSE,
    TimedAttempt,
    end_timed_out,
    failed,
    is_ctrl_c,
    log_outlasting,
    logger,
    place_of,
    requeue_unstarted,
)
from ._native import Message, Operation, Subscription
from ._notifications import NotificationDispatcher
from ._unawaited import AttemptMark, current_attempt
from .errors import ClosedError
from .options import Plan

#: The most acknowledgements passed to the core at once.
_MAX_ACKS = 32
#: After this number of messages in a row, the event loop gets its turn.
_MAX_IN_A_ROW = 32


class _Worker(asyncio.Task[None]):
    """A task that knows what cancelled it: its current handler, or other code, for example the end of the event loop. Python before 3.11
    does not tell that a task is cancelled, and no version tells by what."""

    from_within = 0
    from_outside = 0
    #: The message of its handler, until the attempt has ended.
    message: Message | None = None
    #: The mark of the current attempt.
    mark: object = None
    #: The garbage collector has ended it; it must not await anything.
    torn_down = False

    def cancel(self, msg: Any = None) -> bool:
        if asyncio.current_task(self.get_loop()) is self:
            self.from_within += 1
        else:
            self.from_outside += 1
        return super().cancel(msg)

    def uncancel(self) -> int:
        """Called by a timeout or a task group after it cancelled the task. Python 3.10 has no such method."""
        if self.from_outside:
            self.from_outside -= 1
        elif self.from_within:
            self.from_within -= 1
        before: Callable[[], int] | None = getattr(super(), "uncancel", None)
        return 0 if before is None else before()

    def begin(self, message: Message) -> None:
        """Starts another attempt; cancellations of the one before are forgotten."""
        self.from_within = self.from_outside = 0
        self.message = message

    @property
    def is_cancelled(self) -> bool:
        """Whether a cancellation is left that would affect the next attempt."""
        return bool(self.from_within or self.from_outside)


def _is_changed(context: contextvars.Context) -> bool:
    """Whether a context variable was set since. The values are compared, and their ``__eq__`` may raise."""
    try:
        return contextvars.copy_context() != context
    except Exception:
        return True


class LoopWorkers:
    """The handlers of one consumer on an event loop.

    Workers are tasks that take one message after the other. Another one is woken only while the handler of the first waits, so handlers that
    never wait cost no task switches.
    """

    def __init__(
        self, plan: Plan, subscription: Subscription, dispatcher: NotificationDispatcher, unstarted: deque[Message]
    ) -> None:
        assert plan.call is not None
        self._plan = plan
        self._handler = cast("Callable[[Message], Awaitable[Any]]", plan.call)
        self._subscription = subscription
        self._dispatcher = dispatcher
        self._limit = plan.native.handler_timeout
        self._concurrency = plan.native.concurrency
        self._loop = asyncio.get_running_loop()
        #: The attempts with a time limit. Whoever removes one, its task or `check_timeouts`, ends it.
        self._timed_attempts: dict[_Worker, TimedAttempt] = {}
        self._thread = threading.get_ident()
        #: Whether it was said that something blocks the event loop. No attempt begins before it goes on.
        self._has_warned = False
        self._context = contextvars.copy_context()
        self._batches = subscription.batches()
        #: Whose handler tells how many messages to take.
        self._sample: Message | None = None
        #: What was taken and not begun. The end takes from it as well, on other threads too.
        self._unstarted = unstarted
        self._acks: list[Message] = []
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        #: What ended a worker, and with it the consumer, although nobody had closed it.
        self._ended_by: str | None = None
        self._waiting_for_messages = False
        self._wake_scheduled = False
        self._ended = False
        self._stopped = False
        #: When the drain ends.
        self._deadline: float | None = None
        self._all_ended: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        self._spawn()
        if self._limit is not None:
            self._dispatcher.watch_timeouts(self, self._limit)

    def close(self) -> None:
        """Takes no more messages; running handlers may finish."""
        self._ended_by = None  # the end is wanted now
        self._drain_deadline()
        self._subscription.close()
        self._requeue_unstarted()

    @property
    def is_within(self) -> bool:
        """Whether the caller is one of the handlers, or a task that a handler may wait for: it cannot wait for its own end."""
        if asyncio.current_task() in self._tasks:
            return True
        mark = current_attempt.get()
        return mark is not None and any(cast("_Worker", task).mark is mark for task in self._tasks)

    def stop(self) -> None:
        """Ends now. What is handled stays handled."""
        self._flush_acks()
        self._deadline = 0.0
        self._subscription.close()
        self._requeue_unstarted()
        self._subscription.abandon()
        self._cancel(None)

    async def wait(self) -> None:
        """Waits until every handler is done and everything is settled. After the drain it no longer waits for handlers."""
        closed = asyncio.ensure_future(self._dispatcher.wait_async(self._subscription.wait_closed(), only_here=True))
        try:
            await asyncio.wait((closed, self._all_ended), return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                # Handlers whose messages are settled, by themselves or by their timeout, may still run. They are waited for, too.
                await self._wait_for_handlers()
            else:
                self._flush_acks()
            await closed
        finally:
            closed.cancel()
        if self._ended_by is not None:
            raise ClosedError(f"a worker of {self._plan.queue} was {self._ended_by}, and the consumer ended by it")

    async def _wait_for_handlers(self) -> None:
        """The subscription has ended. Handlers get the rest of the drain, and then are cancelled."""
        self._end()
        left = await self._unfinished(self._drain_deadline() - time.monotonic())
        if left and not self._stopped:
            held = [message for task in left if (message := cast("_Worker", task).message) is not None]
            log_outlasting(
                self._plan, held, "%s: cancelled %d handlers that still run after `drain_timeout`", len(left)
            )
            self._cancel(asyncio.current_task())
            left = await self._unfinished(CANCEL_GRACE)
            if left:
                said = "%s: abandoned %d handlers that ignore their cancellation"
                fields = _logs.about_queue(self._plan.queue, count=len(left))
                _logs.log(logger, logging.ERROR, said, self._plan.queue, len(left), fields=fields)
        elif left:
            await self._unfinished(CANCEL_GRACE)

    def _drain_deadline(self) -> float:
        """When the drain ends. The first call starts the drain."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._plan.native.drain_timeout
        return self._deadline

    async def _unfinished(self, seconds: float) -> set[asyncio.Task[None]]:
        """The handlers that are not done after this many seconds, without the caller."""
        tasks = self._tasks - {cast("asyncio.Task[None] | None", asyncio.current_task())}
        if tasks:
            _, tasks = await asyncio.wait(tasks, timeout=max(seconds, 0.0))
        return tasks

    def _cancel(self, spared: asyncio.Task[Any] | None) -> None:
        self._stopped = True
        for task in self._tasks:
            if task is not spared:
                task.cancel()

    def abandon(self) -> None:
        """The event loop was closed while handlers were running. They will never end, so their messages are requeued as unstarted.
        May be called from any thread."""
        with contextlib.suppress(Exception):  # in a forked child nothing can be settled
            self._flush_acks()
            self._subscription.close()
            self._requeue_unstarted()
            held = []
            for task in cast("list[_Worker]", list(self._tasks)):
                message, task.message = task.message, None
                self._timed_attempts.pop(task, None)
                if message is not None:
                    held.append(message)
            if held:
                self._subscription.give_back(held)
            self._subscription.abandon()

    def _requeue_unstarted(self) -> None:
        requeue_unstarted(self._subscription, self._unstarted)

    def _spawn(self) -> None:
        # Each worker has its own context, so that variables a handler sets end with the worker.
        task = self._context.copy().run(self._new_worker)
        self._tasks.add(task)
        task.add_done_callback(self._worker_ended)

    def _new_worker(self) -> _Worker:
        return _Worker(self._work(), loop=self._loop)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() and not self._stopped and cast("_Worker", task).from_outside:
            _logs.log(
                logger,
                logging.ERROR,
                "%s: a worker was cancelled from outside, as at the end of an event loop; the consumer ends, and what it holds "
                "is delivered again",
                self._plan.queue,
                fields=_logs.about_queue(self._plan.queue),
            )
            if self._deadline is None:
                self._ended_by = "cancelled from outside"
            self.stop()
        elif not task.cancelled() and not isinstance(task.exception(), KeyboardInterrupt | None):
            # Ctrl-C is not logged: the event loop raises it.
            fields, error = _logs.about_queue(self._plan.queue), task.exception()
            _logs.log(logger, logging.ERROR, "a worker of %s ended", self._plan.queue, exc_info=error, fields=fields)
            self._loop.call_later(FAULT_PAUSE, self._replace)
            return
        self._replace()

    def _replace(self) -> None:
        """Starts another worker for one that has gone, unless it was the end."""
        if not (self._ended or self._stopped):
            if len(self._tasks) < self._concurrency:  # a message that came in the pause has woken another one
                self._spawn()
        elif not self._tasks and not self._all_ended.done():
            self._all_ended.set_result(None)

    def _next_message(self) -> Message | None:
        if not self._unstarted:
            if self._ended or self._subscription.is_closing:
                return None  # no new attempts while closing
            batch = self._batches.take(self._sample is None)
            if not batch:
                return None
            if self._sample is None:
                self._sample = batch[0]
            self._unstarted.extend(batch)
        try:
            return self._unstarted.popleft()
        except IndexError:  # the interpreter ends, and has given them back
            return None

    async def _work(self) -> None:
        task = cast("_Worker", asyncio.current_task())
        try:
            await self._take_and_handle(task)
        except KeyboardInterrupt:
            self._interrupted(task)
            raise

    def _interrupted(self, task: _Worker) -> None:
        """Ctrl-C does not end an attempt. The worker's message is requeued as unstarted; other handlers may finish."""
        broken = "interrupted by Ctrl-C" if self._deadline is None else self._ended_by
        self._flush_acks()  # the event loop may never run again
        self.close()
        self._ended_by = broken
        message, task.message = task.message, None
        if message is not None:
            self._subscription.give_back([message])

    async def _take_and_handle(self, task: _Worker) -> None:
        in_a_row = 0
        while not self._stopped:
            message = self._next_message()
            if message is None:
                if self._ended:
                    return
                in_a_row = 0
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                self._wait_for_messages()
                await waiter
                continue
            if not self._wake_scheduled:
                self._wake_scheduled = True
                self._loop.call_soon(self._wake_another)
            mark = task.mark = AttemptMark()
            current_attempt.set(mark)
            context = contextvars.copy_context()
            try:
                await self._attempt(message, task, mark)
            finally:
                if message is self._sample:
                    self._sample = None
            task.mark = None
            if task.torn_down or _is_changed(context) or task.is_cancelled:
                return  # the next worker has a fresh context
            in_a_row += 1
            if in_a_row % _MAX_IN_A_ROW == 0:
                await asyncio.sleep(0)

    async def _attempt(self, message: Message, task: _Worker, mark: AttemptMark) -> None:
        task.begin(message)
        if self._limit is None:
            try:
                result = await self._handler(message)
                if result is not None:
                    _result_check.check(result, is_async=True)
                if mark.calls:
                    mark.check(is_async=True)
            except BaseException as error:
                if self._is_torn_down(task):
                    return
                if is_ctrl_c(error) or self._is_cancelled_from_outside(error, task):
                    raise
                task.message = None
                failed(self._plan, message, error)
            else:
                if not self._is_torn_down(task):
                    task.message = None
                    self._acknowledge(message)
            return
        late = False
        attempt = mark.timed = self._timed_attempts[task] = TimedAttempt(message, self._limit)
        self._has_warned = False

        def on_timeout() -> None:
            nonlocal late
            late = True
            self._time_out(task, attempt)
            task.cancel()

        timer = self._loop.call_later(self._limit, on_timeout)
        try:
            result = await self._handler(message)
            if not late:
                if result is not None:
                    _result_check.check(result, is_async=True)
                if mark.calls:
                    mark.check(is_async=True)
        except BaseException as error:
            if self._is_torn_down(task):
                return
            if is_ctrl_c(error):
                raise
            if late:
                task.uncancel()
            elif self._is_cancelled_from_outside(error, task):
                raise
            elif self._claim_end(task, attempt):
                task.message = None
                failed(self._plan, message, error)
        else:
            if not self._is_torn_down(task) and not late and self._claim_end(task, attempt):
                task.message = None
                self._acknowledge(message)
        finally:
            timer.cancel()
            self._timed_attempts.pop(task, None)

    def _claim_end(self, task: _Worker, attempt: TimedAttempt) -> bool:
        """Whether the task ends the attempt: it is in time, and `check_timeouts` has not ended it just now."""
        return not self._is_late(task, attempt) and self._timed_attempts.pop(task, None) is not None

    def _is_late(self, task: _Worker, attempt: TimedAttempt) -> bool:
        """Whether the attempt has used up its time, which its timer cannot tell while something blocks the event loop. Then it is a timeout,
        whatever the handler returns or raises."""
        if time.monotonic() < attempt.deadline:
            return False
        self._time_out(task, attempt)
        return True

    def _time_out(self, task: _Worker, attempt: TimedAttempt) -> None:
        task.message = None
        if self._timed_attempts.pop(task, None) is not None:  # otherwise `check_timeouts` has ended it
            if time.monotonic() - attempt.deadline >= BLOCKED_AFTER:
                self._warn_of_blocked_loop(attempt, None)
            end_timed_out(self._plan, attempt)

    def check_timeouts(self) -> None:
        """Ends the attempts whose time is over although something blocks the event loop. Called on another thread."""
        if not self._loop.is_running():  # stopped, and perhaps about to be closed: then they have not failed
            return
        now = time.monotonic()
        for task, attempt in list(self._timed_attempts.items()):
            if now - attempt.deadline >= BLOCKED_AFTER and self._timed_attempts.pop(task, None) is not None:
                if task.message is attempt.message:
                    task.message = None
                self._warn_of_blocked_loop(attempt, place_of(self._thread))
                end_timed_out(self._plan, attempt)

    def _warn_of_blocked_loop(self, attempt: TimedAttempt, place: str | None) -> None:
        if self._has_warned or attempt.message._is_settled:
            return
        self._has_warned = True
        _log_queue.write(
            "retryrmq.handler",
            logging.WARNING,
            "%s: the event loop was blocked when the handler timeout of %s of %r had passed: the attempt has failed; move what blocks to a "
            "thread, for example with `asyncio.to_thread`%s",
            self._plan.queue,
            _native.duration_text(cast("float", self._limit)),
            attempt.message,
            f"; it is in {place}" if place else "",
            fields=_logs.about(attempt.message),
        )

    def _is_torn_down(self, task: _Worker) -> bool:
        """Whether its event loop was closed, and the garbage collector ends the waiting handlers. Their errors then do not end an attempt."""
        if asyncio.current_task(self._loop) is task:
            return False
        task.torn_down = True
        self.abandon()
        return True

    def _is_cancelled_from_outside(self, error: BaseException, task: _Worker) -> bool:
        """Whether the handler was cancelled from outside, for example by the end of the event loop."""
        return self._stopped or (isinstance(error, asyncio.CancelledError) and bool(task.from_outside))

    def _acknowledge(self, message: Message) -> None:
        acks = self._acks
        if not acks:
            self._loop.call_soon(self._flush_acks)
        acks.append(message)
        if len(acks) >= _MAX_ACKS:
            self._subscription.ack(acks)
            # The scheduled call will pass on later ones.
            acks.clear()

    def _flush_acks(self) -> None:
        if self._acks:
            self._subscription.ack(self._acks)
            self._acks.clear()

    def _wake_another(self) -> None:
        """While a handler waits: wakes another worker if there are messages, or as soon as there are."""
        self._wake_scheduled = False
        if self._stopped or self._ended or not (self._idle or len(self._tasks) < self._concurrency):
            return
        message = self._next_message()
        if message is None:
            self._wait_for_messages()
            return
        self._unstarted.appendleft(message)
        self._wake()

    def _wake(self) -> None:
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        if len(self._tasks) < self._concurrency:
            self._spawn()

    def _wait_for_messages(self) -> None:
        if not self._waiting_for_messages:
            self._waiting_for_messages = True
            self._dispatcher.when_done(self._subscription.ready(), self._messages_arrived, self.abandon)

    def _messages_arrived(self, operation: Operation) -> None:
        self._waiting_for_messages = False
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
        self._requeue_unstarted()
