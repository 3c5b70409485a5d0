"""Log lines whose handlers run on a thread of their own, so that they hold up nothing else.

A log handler may wait for the library, for example in its own ``publish``, or end the program. On the thread that fetches notifications, either
would stop every consumer on an event loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import _logs

#: How many lines can wait. Further ones are dropped and counted.
MAX_LINES = 10_000
#: How long the thread waits for more lines, in seconds.
_IDLE_TIMEOUT = 5.0
#: How often the number of dropped lines is logged, in seconds.
_WARNING_INTERVAL = 1.0


class _Line(NamedTuple):
    logger: str
    level: int
    text: str
    args: tuple[object, ...]
    exc_info: Any
    fields: Mapping[str, object] | None


class LogQueue:
    """The lines that wait to be written."""

    def __init__(self) -> None:
        self._waiting: deque[_Line] = deque()
        self._dropped = 0
        self._warned_at = 0.0
        self._changed = threading.Condition()
        #: Whether there is a thread.
        self._busy = False
        #: Whether it is writing a line.
        self._writing = False

    def write(
        self,
        logger: str,
        level: int,
        text: str,
        *args: object,
        exc_info: Any = None,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """Adds a line. Never waits and never raises."""
        with self._changed:
            if len(self._waiting) >= MAX_LINES:
                self._dropped += 1
            else:
                self._waiting.append(_Line(logger, level, text, args, exc_info, fields))
                self._changed.notify_all()
            begin, self._busy = not self._busy, True
        if begin:
            thread = threading.Thread(target=self._write_all, name="retryrmq-log", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the machine has no more threads: the next line tries again
                with self._changed:
                    self._busy = False

    def wait(self, seconds: float) -> None:
        """Waits until all lines are written, for at most this many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._busy and (self._waiting or self._writing)), seconds)
        # On this thread: none can be started while the interpreter ends.
        while not self._busy and self._waiting:
            _write(*self._waiting.popleft())

    def _write_all(self) -> None:
        while (line := self._next()) is not None:
            _write(*line)
            del line
            self._warn_of_dropped()

    def _next(self) -> _Line | None:
        with self._changed:
            self._writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting, _IDLE_TIMEOUT)
            if self._waiting:
                self._writing = True
                return self._waiting.popleft()
            self._busy = False
        return None

    def _warn_of_dropped(self) -> None:
        now = time.monotonic()
        with self._changed:
            # At once if there is nothing else to write, because the next line may come much later.
            dropped = self._dropped if now - self._warned_at >= _WARNING_INTERVAL or not self._waiting else 0
            if not dropped:
                return
            self._dropped, self._warned_at = 0, now
        warning = "%d lines of the log were dropped: its handlers are too slow"
        _write("retryrmq", logging.WARNING, warning, (dropped,), None, {"dropped": dropped})


def _write(
    logger: str, level: int, text: str, args: tuple[object, ...], exc_info: Any, fields: Mapping[str, object] | None
) -> None:
    # Filters and handlers may raise anything, also a SystemExit; the next line must still be written.
    with contextlib.suppress(BaseException):
        _logs.log(_logs.logger(logger), level, text, *args, exc_info=exc_info, fields=fields)
    with contextlib.suppress(BaseException):
        _logs.follow_levels()


#: Made when it is needed: gevent and eventlet replace locks, and may do so after this module was imported.
_queues: dict[int, LogQueue] = {}


def _of_this_process() -> LogQueue:
    return _queues.get(0) or _queues.setdefault(0, LogQueue())


def write(
    logger: str,
    level: int,
    text: str,
    *args: object,
    exc_info: Any = None,
    fields: Mapping[str, object] | None = None,
) -> None:
    """Like :meth:`LogQueue.write`, for this process."""
    _of_this_process().write(logger, level, text, *args, exc_info=exc_info, fields=fields)


def wait(seconds: float) -> None:
    """Like :meth:`LogQueue.wait`, for this process."""
    _of_this_process().wait(seconds)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_queues.clear)
