"""Runs handlers on threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import logging
import threading
import time
from collections import deque
from typing import cast

from . import _logs, _result_check
from ._attempts import (
    FAULT_PAUSE,
    TimedAttempt,
    end_timed_out,
    failed,
    is_ctrl_c,
    log_outlasting,
    logger,
    requeue_unstarted,
)
from ._greenlets import is_forwarded_ctrl_c
from ._native import Batches, Message, Subscription
from ._notifications import NotificationDispatcher
from ._unawaited import AttemptMark, current_attempt
from .errors import ForkedError
from .options import Plan

#: How long a thread waits between two checks for the end.
_WAIT_SLICE = 0.25
#: How many threads per worker may be stuck in handlers after their timeout before no more are started.
_MAX_STUCK = 8


async def until_done(future: concurrent.futures.Future[None], seconds: float | None) -> None:
    """Waits on the event loop for a future of threads, for at most this many seconds, or without a limit."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: concurrent.futures.Future[None]) -> None:
        with contextlib.suppress(RuntimeError):  # closed: nobody waits any more
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(tell)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(done.wait(), seconds)


class ThreadWorkers:
    """The handlers of one consumer on threads of their own.

    When a handler runs longer than ``handler_timeout``, its attempt has failed. A thread cannot be stopped, so another thread takes its
    place, and the old one ends after its handler.
    """

    def __init__(
        self, plan: Plan, subscription: Subscription, dispatcher: NotificationDispatcher, unstarted: deque[Message]
    ) -> None:
        assert plan.call is not None
        self._plan = plan
        self._handler = plan.call
        self._subscription = subscription
        self._dispatcher = dispatcher
        self._limit = plan.native.handler_timeout
        self._context = contextvars.copy_context()
        #: Whoever removes a turn, its thread or the watch, ends the attempt.
        self._timed_attempts: dict[threading.Thread, TimedAttempt] = {}
        #: The running threads, and those of them whose handlers are past their timeout.
        self._threads: set[threading.Thread] = set()
        self._stuck: set[threading.Thread] = set()
        #: The messages of the running attempts, by their marks.
        self._marks: dict[object, Message] = {}
        #: What was taken and not begun. Whoever takes a message out of it, a thread or the end, handles it or gives it back.
        self._unstarted = unstarted
        #: How many stuck threads were not replaced.
        self._unreplaced = 0
        self._lock = threading.Lock()
        #: Of greenlets, the one that waits for messages holds it: all would be woken for each message.
        self._take_lock = threading.Lock()
        # Only a single thread without a timeout may take several messages at once.
        alone = plan.native.concurrency == 1 and self._limit is None
        self._max_taken = None if alone else 1
        #: When the drain ends.
        self._deadline: float | None = None
        #: Done when every handler is done, except those that are stuck; or when nobody waits for them.
        self._all_ended: concurrent.futures.Future[None] = concurrent.futures.Future()

    def start(self) -> None:
        """Starts the threads. Raises if the machine has not enough of them; the started ones end with the subscription."""
        for _ in range(self._plan.native.concurrency):
            self._spawn()
        if self._limit is not None:
            threading.Thread(target=self._watch_timeouts, name="retryrmq-limits", daemon=True).start()

    def close(self) -> None:
        """Takes no more messages; running handlers may finish."""
        self._drain_deadline()
        self._subscription.close()
        requeue_unstarted(self._subscription, self._unstarted)
        self._check_for_end()

    def stop(self) -> None:
        """Ends now. A thread that handles a message cannot be stopped; its message is requeued."""
        self._subscription.close()  # no thread begins another message
        requeue_unstarted(self._subscription, self._unstarted)
        self._subscription.abandon()
        with self._lock:
            if not self._all_ended.done():
                self._all_ended.set_result(None)

    @property
    def is_within(self) -> bool:
        """Whether the caller is one of the handlers, or a task that a handler may wait for: it cannot wait for its own end."""
        return threading.current_thread() in self._threads or current_attempt.get() in self._marks

    def wait(self) -> None:
        """Waits until every handler is done, up to the end of the drain. Called after the end of the subscription."""
        with contextlib.suppress(concurrent.futures.TimeoutError):
            self._all_ended.result(self._drain_left())
        self._log_outlasting()

    async def wait_on_loop(self) -> None:
        """Like :meth:`wait`, without blocking the event loop."""
        await until_done(self._all_ended, self._drain_left())
        self._log_outlasting()

    def _drain_deadline(self) -> float:
        """When the drain ends. The first call starts the drain."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._plan.native.drain_timeout
        return self._deadline

    def _drain_left(self) -> float:
        return max(self._drain_deadline() - time.monotonic(), 0.0)

    def _log_outlasting(self) -> None:
        if self._all_ended.done():
            return
        with self._lock:
            left = len(self._threads - self._stuck)
        said = "%s: abandoned the threads of %d handlers that still run after `drain_timeout`"
        log_outlasting(self._plan, list(self._marks.values()), said, left)

    def _spawn(self) -> None:
        # Daemons: a handler that never returns must not keep the process alive after its drain.
        thread = threading.Thread(target=self._work, name=f"retryrmq-{self._plan.queue}", daemon=True)
        with self._lock:
            self._threads.add(thread)
        try:
            thread.start()
        except BaseException as error:
            # It may have begun to handle a message, which is waited for.
            if not thread.is_alive():
                self._thread_ended(thread)
            # Ctrl-C, while CPython was to get a lock back that it then releases all the same.
            if isinstance(error, RuntimeError) and isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None
            raise

    def _thread_ended(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads.discard(thread)
            self._stuck.discard(thread)
        self._check_for_end()

    def _check_for_end(self) -> None:
        with self._lock:
            if self._subscription.is_closing and self._threads == self._stuck and not self._all_ended.done():
                self._all_ended.set_result(None)

    def _work(self) -> None:
        try:
            while not self._handle_until_ended():
                time.sleep(FAULT_PAUSE)
        finally:
            self._thread_ended(threading.current_thread())

    def _handle_until_ended(self) -> bool:
        """Handles messages until the end. Returns whether it came to that."""
        try:
            self._take_and_handle()
        except ForkedError:  # a greenlet that lives on in a forked child
            return True
        except BaseException as error:
            if is_forwarded_ctrl_c(error):
                return self._subscription.is_closing
            with contextlib.suppress(BaseException):
                fields = _logs.about_queue(self._plan.queue)
                _logs.log(
                    logger, logging.ERROR, "a worker of %s failed", self._plan.queue, exc_info=error, fields=fields
                )
            return self._subscription.is_closing
        return True

    def _take_and_handle(self) -> None:
        subscription, batches = self._subscription, self._subscription.batches(self._max_taken)
        self._handle_all([])  # what a fault has left
        while True:
            batch = self._take(batches)
            if batch and subscription.is_closing:
                subscription.give_back(batch)
            elif batch:
                if self._limit is None:
                    self._handle_all(batch)
                elif not self._handle_with_timeout(batch[0], self._limit):
                    return
            elif subscription.is_closing:
                return

    def _take(self, batches: Batches) -> list[Message]:
        if not self._dispatcher.is_of_greenlets:
            return batches.take_blocking(_WAIT_SLICE)
        with self._take_lock:
            return self._dispatcher.take_messages(lambda: batches.take(True), self._subscription)

    def _handle_all(self, batch: list[Message]) -> None:
        self._unstarted.extend(batch)
        while True:
            if self._subscription.is_closing:  # no new attempts
                requeue_unstarted(self._subscription, self._unstarted)
            try:
                message = self._unstarted.popleft()
            except IndexError:
                return
            try:
                self._end(message, self._attempt(message))
            except BaseException:  # or it would stay here forever
                self._subscription.give_back([message])
                raise

    def _handle_with_timeout(self, message: Message, limit: float) -> bool:
        """Handles a message. Returns whether this thread goes on: it was not replaced, or another place is free."""
        me = threading.current_thread()
        attempt = self._timed_attempts[me] = TimedAttempt(message, limit)
        error = self._attempt(message, attempt)
        if self._timed_attempts.pop(me, None) is None:
            if error is not None:
                is_forwarded_ctrl_c(error)
            with self._lock:
                wanted = self._unreplaced > 0
                if wanted:
                    self._unreplaced -= 1
                    self._stuck.discard(me)
            return wanted
        if time.monotonic() < attempt.deadline or (error is not None and is_ctrl_c(error)):
            self._end(message, error)
        else:  # before the watch has seen it
            end_timed_out(self._plan, attempt)
        return True

    def _attempt(self, message: Message, attempt: TimedAttempt | None = None) -> BaseException | None:
        mark = AttemptMark()
        mark.timed = attempt
        self._marks[mark] = message
        try:
            # Each message has its own context, so that variables a handler sets end with it.
            context = self._context.copy()
            context.run(current_attempt.set, mark)
            result = context.run(self._handler, message)
            if result is not None:
                _result_check.check(result, is_async=False)
            if mark.calls:
                mark.check(is_async=False)
        except BaseException as error:
            return error
        finally:
            del self._marks[mark]
        return None

    def _end(self, message: Message, error: BaseException | None) -> None:
        # At once, not together with others: the next handler may take long. The core combines acknowledgements itself.
        if error is None:
            self._subscription.ack([message])
        elif is_forwarded_ctrl_c(error):
            self._subscription.give_back([message])
        else:
            failed(self._plan, message, error)

    def _watch_timeouts(self) -> None:
        while True:
            try:
                self._check_timeouts()
            except KeyboardInterrupt as error:
                if not is_forwarded_ctrl_c(error):
                    raise
            else:
                return

    def _check_timeouts(self) -> None:
        step = max(0.01, min(_WAIT_SLICE, cast("float", self._limit) / 4))
        while not concurrent.futures.wait((self._all_ended,), step).done:
            now = time.monotonic()
            for thread, attempt in list(self._timed_attempts.items()):
                if now < attempt.deadline or self._timed_attempts.pop(thread, None) is None:
                    continue
                self._replace(thread)
                end_timed_out(self._plan, attempt)

    def _replace(self, thread: threading.Thread) -> None:
        """Starts another thread for one that is stuck. If there are too many, its place stays free until one comes back."""
        with self._lock:
            if thread in self._threads:  # it may have come back in between
                self._stuck.add(thread)
            stuck = len(self._stuck)
        if stuck <= _MAX_STUCK * self._plan.native.concurrency:
            with contextlib.suppress(RuntimeError):  # the machine has no more threads
                self._spawn()
                return
        with self._lock:
            self._unreplaced += 1
        self._check_for_end()
        with contextlib.suppress(BaseException):
            said = "%s: %d threads are stuck in handlers; no more are started"
            fields = _logs.about_queue(self._plan.queue, count=stuck)
            _logs.log(logger, logging.ERROR, said, self._plan.queue, stuck, fields=fields)
