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

from . import _lines, _logs, _native, _returned
from ._attempts import (
    BLOCKED,
    FAULT_PAUSE,
    GRACE,
    Turn,
    failed,
    is_ctrl_c,
    logger,
    outlasted,
    place_of,
    return_the_unstarted,
    timed_out,
)
from ._native import Message, Operation, Subscription
from ._pump import Pump
from ._unawaited import Mark, within
from .errors import ClosedError
from .options import Plan

#: The most acknowledgements passed to the core at once.
_ACKS = 32
#: After this number of messages in a row, the event loop gets its turn.
_STRETCH = 32


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

    def __init__(self, plan: Plan, subscription: Subscription, pump: Pump, unstarted: deque[Message]) -> None:
        assert plan.call is not None
        self._plan = plan
        self._handler = cast("Callable[[Message], Awaitable[Any]]", plan.call)
        self._subscription = subscription
        self._pump = pump
        self._limit = plan.native.handler_timeout
        self._most = plan.native.concurrency
        self._loop = asyncio.get_running_loop()
        #: The attempts with a time limit. Whoever removes one, its task or `look`, ends it.
        self._turns: dict[_Worker, Turn] = {}
        self._thread = threading.get_ident()
        #: Whether it was said that something blocks the event loop. No attempt begins before it goes on.
        self._blocked = False
        self._context = contextvars.copy_context()
        self._batches = subscription.batches()
        #: Whose handler tells how many messages to take.
        self._watched: Message | None = None
        #: What was taken and not begun. The end takes from it as well, on other threads too.
        self._unstarted = unstarted
        self._acks: list[Message] = []
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        #: What ended a worker, and with it the consumer, although nobody had closed it.
        self._broken: str | None = None
        self._listening = False
        self._nudged = False
        self._ended = False
        self._stopped = False
        #: When the drain ends.
        self._deadline: float | None = None
        self._all_gone: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        self._spawn()
        if self._limit is not None:
            self._pump.watch(self, self._limit)

    def close(self) -> None:
        """Takes no more messages; running handlers may finish."""
        self._broken = None  # the end is wanted now
        self._drain_until()
        self._subscription.close()
        self._return_the_unstarted()

    @property
    def is_within(self) -> bool:
        """Whether the caller is one of the handlers, or a task that a handler may wait for: it cannot wait for its own end."""
        if asyncio.current_task() in self._tasks:
            return True
        mark = within.get()
        return mark is not None and any(cast("_Worker", task).mark is mark for task in self._tasks)

    def stop(self) -> None:
        """Ends now. What is handled stays handled."""
        self._hand_over()
        self._deadline = 0.0
        self._subscription.close()
        self._return_the_unstarted()
        self._subscription.abandon()
        self._cancel(None)

    async def wait(self) -> None:
        """Waits until every handler is done and everything is settled. After the drain it no longer waits for handlers."""
        closed = asyncio.ensure_future(self._pump.answer(self._subscription.wait_closed(), only_here=True))
        try:
            await asyncio.wait((closed, self._all_gone), return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                # Handlers whose messages are settled, by themselves or by their timeout, may still run. They are waited for, too.
                await self._leave()
            else:
                self._hand_over()
            await closed
        finally:
            closed.cancel()
        if self._broken is not None:
            raise ClosedError(f"a worker of {self._plan.queue} was {self._broken}, and the consumer ended by it")

    async def _leave(self) -> None:
        """The subscription has ended. Handlers get the rest of the drain, and then are cancelled."""
        self._end()
        left = await self._left(self._drain_until() - time.monotonic())
        if left and not self._stopped:
            held = [message for task in left if (message := cast("_Worker", task).message) is not None]
            outlasted(self._plan, held, "%s: %d handlers that outlast `drain_timeout` are cancelled", len(left))
            self._cancel(asyncio.current_task())
            left = await self._left(GRACE)
            if left:
                said = "%s: %d handlers would not be cancelled; they are left behind"
                fields = _logs.about_queue(self._plan.queue, count=len(left))
                _logs.log(logger, logging.ERROR, said, self._plan.queue, len(left), fields=fields)
        elif left:
            await self._left(GRACE)

    def _drain_until(self) -> float:
        """When the drain ends. The first call starts the drain."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._plan.native.drain_timeout
        return self._deadline

    async def _left(self, seconds: float) -> set[asyncio.Task[None]]:
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

    def let_go(self) -> None:
        """The event loop was closed while handlers were running. They will never end, so their messages are requeued as unstarted.
        May be called from any thread."""
        with contextlib.suppress(Exception):  # in a forked child nothing can be settled
            self._hand_over()
            self._subscription.close()
            self._return_the_unstarted()
            held = []
            for task in cast("list[_Worker]", list(self._tasks)):
                message, task.message = task.message, None
                self._turns.pop(task, None)
                if message is not None:
                    held.append(message)
            if held:
                self._subscription.give_back(held)
            self._subscription.abandon()

    def _return_the_unstarted(self) -> None:
        return_the_unstarted(self._subscription, self._unstarted)

    def _spawn(self) -> None:
        # Each worker has its own context, so that variables a handler sets end with the worker.
        task = self._context.copy().run(self._begun)
        self._tasks.add(task)
        task.add_done_callback(self._gone)

    def _begun(self) -> _Worker:
        return _Worker(self._work(), loop=self._loop)

    def _gone(self, task: asyncio.Task[None]) -> None:
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
                self._broken = "cancelled from outside"
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
            if len(self._tasks) < self._most:  # a message that came in the pause has woken another one
                self._spawn()
        elif not self._tasks and not self._all_gone.done():
            self._all_gone.set_result(None)

    def _next(self) -> Message | None:
        if not self._unstarted:
            if self._ended or self._subscription.is_closing:
                return None  # no new attempts while closing
            batch = self._batches.take(self._watched is None)
            if not batch:
                return None
            if self._watched is None:
                self._watched = batch[0]
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
        broken = "interrupted by Ctrl-C" if self._deadline is None else self._broken
        self._hand_over()  # the event loop may never run again
        self.close()
        self._broken = broken
        message, task.message = task.message, None
        if message is not None:
            self._subscription.give_back([message])

    async def _take_and_handle(self, task: _Worker) -> None:
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
            mark = task.mark = Mark()
            within.set(mark)
            context = contextvars.copy_context()
            try:
                await self._attempt(message, task, mark)
            finally:
                if message is self._watched:
                    self._watched = None
            task.mark = None
            if task.torn_down or _is_changed(context) or task.is_cancelled:
                return  # the next worker has a fresh context
            turns += 1
            if turns % _STRETCH == 0:
                await asyncio.sleep(0)

    async def _attempt(self, message: Message, task: _Worker, mark: Mark) -> None:
        task.begin(message)
        if self._limit is None:
            try:
                result = await self._handler(message)
                if result is not None:
                    _returned.check(result, is_async=True)
                if mark.calls:
                    mark.check(is_async=True)
            except BaseException as error:
                if self._is_torn_down(task):
                    return
                if is_ctrl_c(error) or self._is_the_end(error, task):
                    raise
                task.message = None
                failed(self._plan, message, error)
            else:
                if not self._is_torn_down(task):
                    task.message = None
                    self._acked(message)
            return
        late = False
        turn = mark.turn = self._turns[task] = Turn(message, self._limit)
        self._blocked = False

        def too_late() -> None:
            nonlocal late
            late = True
            self._too_late(task, turn)
            task.cancel()

        timer = self._loop.call_later(self._limit, too_late)
        try:
            result = await self._handler(message)
            if not late:
                if result is not None:
                    _returned.check(result, is_async=True)
                if mark.calls:
                    mark.check(is_async=True)
        except BaseException as error:
            if self._is_torn_down(task):
                return
            if is_ctrl_c(error):
                raise
            if late:
                task.uncancel()
            elif self._is_the_end(error, task):
                raise
            elif self._is_ours(task, turn):
                task.message = None
                failed(self._plan, message, error)
        else:
            if not self._is_torn_down(task) and not late and self._is_ours(task, turn):
                task.message = None
                self._acked(message)
        finally:
            timer.cancel()
            self._turns.pop(task, None)

    def _is_ours(self, task: _Worker, turn: Turn) -> bool:
        """Whether the task ends the attempt: it is in time, and `look` has not ended it just now."""
        return not self._is_late(task, turn) and self._turns.pop(task, None) is not None

    def _is_late(self, task: _Worker, turn: Turn) -> bool:
        """Whether the attempt has used up its time, which its timer cannot tell while something blocks the event loop. Then it is a timeout,
        whatever the handler returns or raises."""
        if time.monotonic() < turn.deadline:
            return False
        self._too_late(task, turn)
        return True

    def _too_late(self, task: _Worker, turn: Turn) -> None:
        task.message = None
        if self._turns.pop(task, None) is not None:  # otherwise `look` has ended it
            if time.monotonic() - turn.deadline >= BLOCKED:
                self._say_blocked(turn, None)
            timed_out(self._plan, turn)

    def look(self) -> None:
        """Ends the attempts whose time is over although something blocks the event loop. Called on another thread."""
        if not self._loop.is_running():  # stopped, and perhaps about to be closed: then they have not failed
            return
        now = time.monotonic()
        for task, turn in list(self._turns.items()):
            if now - turn.deadline >= BLOCKED and self._turns.pop(task, None) is not None:
                if task.message is turn.message:
                    task.message = None
                self._say_blocked(turn, place_of(self._thread))
                timed_out(self._plan, turn)

    def _say_blocked(self, turn: Turn, place: str | None) -> None:
        if self._blocked or turn.message._is_settled:
            return
        self._blocked = True
        _lines.write(
            "retryrmq.handler",
            logging.WARNING,
            "%s: the event loop was blocked when the handler timeout of %s of %r had passed: the attempt has failed; move what blocks to a "
            "thread, for example with `asyncio.to_thread`%s",
            self._plan.queue,
            _native.duration_text(cast("float", self._limit)),
            turn.message,
            f"; it is in {place}" if place else "",
            fields=_logs.about(turn.message),
        )

    def _is_torn_down(self, task: _Worker) -> bool:
        """Whether its event loop was closed, and the garbage collector ends the waiting handlers. Their errors then do not end an attempt."""
        if asyncio.current_task(self._loop) is task:
            return False
        task.torn_down = True
        self.let_go()
        return True

    def _is_the_end(self, error: BaseException, task: _Worker) -> bool:
        """Whether the handler was cancelled from outside, for example by the end of the event loop."""
        return self._stopped or (isinstance(error, asyncio.CancelledError) and bool(task.from_outside))

    def _acked(self, message: Message) -> None:
        acks = self._acks
        if not acks:
            self._loop.call_soon(self._hand_over)
        acks.append(message)
        if len(acks) >= _ACKS:
            self._subscription.ack(acks)
            # The scheduled call will pass on later ones.
            acks.clear()

    def _hand_over(self) -> None:
        if self._acks:
            self._subscription.ack(self._acks)
            self._acks.clear()

    def _nudge(self) -> None:
        """While a handler waits: wakes another worker if there are messages, or as soon as there are."""
        self._nudged = False
        if self._stopped or self._ended or not (self._idle or len(self._tasks) < self._most):
            return
        message = self._next()
        if message is None:
            self._listen()
            return
        self._unstarted.appendleft(message)
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
            self._pump.when_done(self._subscription.ready(), self._arrived, self.let_go)

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
