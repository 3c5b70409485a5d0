"""The threads of a worker's main process that store copies.

An original is acknowledged when its copy is stored, and on the worker's loop, which alone writes to its connection.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .. import _logs
from ..errors import RetryRmqError
from ._copy_store import MAX_PAUSE, PERMANENT_ERRORS, CopyStore, Decide, log_retry, logger

_state: Any = import_module("celery.worker.state")

_THREADS = 8
#: Copies without an original, which nothing else limits: those of tasks that were acknowledged before they ran.
_MOST_COPIES, _MOST_BYTES = 1000, 64 << 20
#: How long an original is held for its copy, in seconds. RabbitMQ takes it back after 30 minutes, and closes the channel.
_HOLD_TIMEOUT = 600.0
#: Between two tries while the worker ends, at most, in seconds.
_MAX_PAUSE_WHILE_DRAINING = 0.5


def is_connected(message: Any) -> bool:
    connection = getattr(message.channel, "connection", None)
    return connection is not None and bool(connection.connected)


class PendingCopy:
    """A message whose copy is being stored."""

    is_stored = False

    def __init__(
        self,
        copies: CopyStore,
        message: Any,
        settle: Callable[[bool], Any] | None,
        decide: Decide,
    ) -> None:
        """``settle`` acknowledges it, or requeues it for ``False``; ``None`` if it is acknowledged already."""
        self._copies, self._message, self._settle, self._decide = copies, message, settle, decide
        self._queue = message.delivery_info["queue"]
        self._deadline, self._pause = time.monotonic() + _HOLD_TIMEOUT, 0.05
        self.acked_early, self.size = settle is None, len(message.body or b"")

    def is_wanted(self) -> bool:
        """Whether the original does not come again by itself, as it does once its connection is lost."""
        return self.acked_early or is_connected(self._message)

    def try_once(self) -> float | None:
        """Tries once. Returns the seconds until the next try, or ``None`` after the last."""
        if not self.is_wanted():
            return None
        try:
            self._copies.store_once(self._queue, self._decide)
        except BaseException as error:
            may_work = isinstance(error, RetryRmqError) and not (
                self.acked_early and isinstance(error, PERMANENT_ERRORS)
            )
            if (
                isinstance(error, RetryRmqError)
                and may_work
                and (self.acked_early or time.monotonic() < self._deadline)
            ):
                log_retry(error)
                self._pause = min(MAX_PAUSE, self._pause * 2)
                return self._pause
            logger.exception("%s: a copy cannot be stored", self._queue)
        else:
            self.is_stored = True
        if self._settle is not None:
            self._message.call_soon(self._settle_soon)
        return None

    def needs_ack(self) -> bool:
        return self.is_stored and not self.acked_early and self.is_wanted() and not self._message.acknowledged

    def ack_now(self, errors: Any) -> None:
        if self.needs_ack():
            self._message.ack_log_error(logger, errors)

    def _settle_soon(self) -> None:
        if self._settle is not None and self.is_wanted() and not self._message.acknowledged:
            self._settle(self.is_stored)


class CopyWorkers:
    """The copies of this process, and the threads that store them: each copy at its time, so that none holds up the others."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, PendingCopy]] = []
        self._order = itertools.count()
        self._unfinished: set[PendingCopy] = set()
        self._stored: set[PendingCopy] = set()
        self._threads = self._idle = self._acked_early = self._bytes = 0
        self._draining = False

    def add(self, copy: PendingCopy) -> None:
        """Waits for a place if there are too many: a worker that waits takes no more tasks."""
        with self._changed:
            while copy.acked_early and self._is_full() and not _worker_is_ending():
                self._changed.wait(1.0)
            self._draining = False
            self._stored = {it for it in self._stored if it.needs_ack()}
            if self._idle <= len(self._due) and self._threads < _THREADS:
                self._start()
            self._unfinished.add(copy)
            if copy.acked_early:
                self._acked_early, self._bytes = self._acked_early + 1, self._bytes + copy.size
            self._put(copy, 0.0)

    def drain(self, timeout: float, errors: Any) -> None:
        """Waits for the copies, and acknowledges their originals: what is to be called soon is not called any more."""
        end = time.monotonic() + timeout
        with self._changed:
            self._draining = True
            self._due = [(0.0, order, copy) for _, order, copy in self._due]
            heapq.heapify(self._due)
            self._changed.notify_all()
            while self._unfinished and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            stored, acked = list(self._stored), sum(copy.acked_early for copy in self._unfinished)
            late = sum(copy.is_wanted() for copy in self._unfinished) - acked
        for copy in stored:
            copy.ack_now(errors)
        if late:
            _logs.log(logger, logging.WARNING, "%d copies are not stored; their messages come again", late)
        if acked:
            text = "%d tasks that were acknowledged before they ran are not parked, and their messages are lost"
            _logs.log(logger, logging.ERROR, text, acked)

    def _is_full(self) -> bool:
        return self._acked_early >= _MOST_COPIES or self._bytes >= _MOST_BYTES

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, name=f"retryrmq-{self._threads}", daemon=True).start()
        except RuntimeError:
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _put(self, copy: PendingCopy, pause: float) -> None:
        if self._draining:
            pause = min(pause, _MAX_PAUSE_WHILE_DRAINING)
        heapq.heappush(self._due, (time.monotonic() + pause, next(self._order), copy))
        self._changed.notify_all()

    def _next(self) -> PendingCopy:
        while not self._due or self._due[0][0] > time.monotonic():
            self._idle += 1
            self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
            self._idle -= 1
        return heapq.heappop(self._due)[2]

    def _work(self) -> None:
        while True:
            with self._changed:
                copy = self._next()
            pause = copy.try_once()
            with self._changed:
                if pause is not None:
                    self._put(copy, pause)
                    continue
                self._unfinished.discard(copy)
                if copy.acked_early:
                    self._acked_early, self._bytes = self._acked_early - 1, self._bytes - copy.size
                elif copy.needs_ack():
                    self._stored.add(copy)
                self._changed.notify_all()


def _worker_is_ending() -> bool:
    return _state.should_stop not in (None, False) or _state.should_terminate not in (None, False)


copy_workers = CopyWorkers()
