"""Listeners of events: each gets its events in order and on its own thread or loop, and none holds up anything else."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from . import _log_queue, _logs, events
from ._greenlets import is_forwarded_ctrl_c

logger = _logs.logger("retryrmq")

#: A function that is called with each event.
Listener = Callable[[events.Event], None]

#: How many events can wait for a listener. Further ones are dropped and counted.
MAX_EVENTS = 10_000
#: How long a thread waits for more events, in seconds.
_IDLE_TIMEOUT = 5.0
#: How often the number of dropped events is logged, in seconds.
_WARNING_INTERVAL = 1.0


class ListenerQueue:
    """The events that wait for one listener."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._waiting: deque[events.Event] = deque()
        self._dropped = 0
        self._warned_at = 0.0
        self._changed = threading.Condition()
        #: Whether events are being passed to the listener, or soon will be.
        self._busy = False
        self._ended = False
        #: Done when the listener got the last event.
        self.done: concurrent.futures.Future[None] = concurrent.futures.Future()

    def put(self, event: events.Event) -> None:
        """Adds an event. Never waits."""
        with self._changed:
            if len(self._waiting) >= MAX_EVENTS:
                self._dropped += 1
            else:
                self._waiting.append(event)
                self._changed.notify()
            begin, self._busy = not self._busy, True
        if begin:
            self._begin()
        self._warn_of_dropped(_WARNING_INTERVAL)

    def end(self) -> None:
        """No more events will come."""
        with self._changed:
            self._ended = True
            self._changed.notify()
            if not self._busy and not self.done.done():
                self.done.set_result(None)
        self._warn_of_dropped(0.0)

    @property
    def left(self) -> int:
        """How many events the listener has not got yet."""
        return len(self._waiting)

    def _begin(self) -> None:
        raise NotImplementedError

    def _next(self, wait: float) -> events.Event | None:
        """The next event; ``None`` if none comes for this many seconds. Then the queue is idle."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended, wait)
            if self._waiting:
                return self._waiting.popleft()
            self._idle()
        return None

    def _idle(self) -> None:
        self._busy = False
        if self._ended and not self.done.done():
            self.done.set_result(None)

    def _warn_of_dropped(self, pause: float) -> None:
        now = time.monotonic()
        with self._changed:
            dropped = self._dropped if now - self._warned_at >= pause else 0
            if not dropped:
                return
            self._dropped, self._warned_at = 0, now
        # Not on this thread: putting an event must not wait for log handlers.
        _log_queue.write("retryrmq", logging.WARNING, "%d events were dropped: their listener is too slow", dropped)


class ThreadListenerQueue(ListenerQueue):
    """For a listener on a thread of its own, which lives as long as there are events."""

    def _begin(self) -> None:
        thread = threading.Thread(target=self._deliver_all, name="retryrmq-events", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the machine has no more threads: the next event tries again
            with self._changed:
                self._busy = False

    def _deliver_all(self) -> None:
        while (event := self._next(_IDLE_TIMEOUT)) is not None:
            try:
                self._listener(event)
            except BaseException as error:  # also a SystemExit: the listener still gets the next event
                with contextlib.suppress(BaseException):  # a log handler may raise
                    if not is_forwarded_ctrl_c(error):
                        logger.exception("an event listener raised")
            del event
            self._warn_of_dropped(_WARNING_INTERVAL)


class LoopListenerQueue(ListenerQueue):
    """For a listener on an event loop."""

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(listener)
        self._loop = loop

    @property
    def left(self) -> int:
        return len(self._waiting) if self._loop.is_running() else 0

    def _begin(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver_waiting)
        except RuntimeError:  # the loop is closed
            with self._changed:
                self._waiting.clear()
                self._idle()

    def _deliver_waiting(self) -> None:
        try:
            for _ in range(len(self._waiting)):
                try:
                    self._listener(self._waiting.popleft())
                except Exception:
                    logger.exception("an event listener raised")
        finally:
            with self._changed:
                more = bool(self._waiting)
                if not more:
                    self._idle()
            if more:
                self._begin()
