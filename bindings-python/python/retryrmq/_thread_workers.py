"""Handlers at work on threads."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from typing import cast

from ._attempts import ACKS, MOST, Batches, failed, logger, refuse_result, timed_out
from ._native import Message, Subscription
from .options import Plan

#: Between two looks at the end, for a thread that waits.
_SLICE = 0.25
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
        self._most = MOST if alone else 1
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
        subscription, batches = self._subscription, Batches()
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
                if len(acks) < ACKS:
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
                timed_out(self._plan, turn.message)

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
