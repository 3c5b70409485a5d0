"""What workers on the event loop and workers on threads share: how an attempt ends, and how many messages to take next.

Messages are taken from the core in batches that grow while handlers are quick, so that a fast handler is not slowed down by
the way to its messages, and a slow one never has messages wait behind it that somebody else could handle.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
from typing import cast

from . import _logs, outcome
from ._native import Message
from .options import Plan

logger = _logs.logger("retryrmq.handler")

#: The most messages that are taken at once.
MOST = 64
#: As long may handlers take to end, in seconds, once they are cancelled.
GRACE = 1.0
#: A batch that took longer was too large.
_QUICK = 0.001


#: The attempt in whose context this runs: also in tasks that its handler has begun, and may wait for.
within: contextvars.ContextVar[object] = contextvars.ContextVar("retryrmq.within", default=None)


def is_ctrl_c(error: BaseException) -> bool:
    """Whether it is the signal, which met somebody's function by chance and says nothing of it."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def failed(plan: Plan, message: Message, error: BaseException) -> None:
    """Ends an attempt that raised. Never raises: a worker that ended by it would leave its messages behind."""
    may_park = message._may_park()
    end = outcome.judged(error, plan.fatal, kinds=plan.native.has_rules, stack=may_park)
    try:
        message._settle(end)
    except BaseException as trouble:
        end = outcome.undecided(error, trouble)
        message._settle(end)
    if end[0] != "defer" and logger.isEnabledFor(logging.DEBUG):
        with contextlib.suppress(BaseException):  # a filter of somebody's logging may raise
            # What failed and what follows, the core says (`retryrmq.attempt`); the trace is Python's alone.
            trace = (type(error), error, outcome.trace_of(error))
            logger.debug("%s: the trace of %r", plan.queue, message, exc_info=trace)


def timed_out(plan: Plan, message: Message) -> None:
    """Ends an attempt whose handler took longer than it may; the handler goes on, or is cancelled by the worker."""
    message._settle(outcome.too_late(cast("float", plan.native.handler_timeout)))


class Batches:
    """How many messages to take next."""

    __slots__ = ("_full", "_taken_at", "size")

    def __init__(self) -> None:
        self.size = 1
        self._full = False
        self._taken_at = 0.0

    def took(self, count: int) -> None:
        now = time.monotonic()
        if self._full and now - self._taken_at < _QUICK:
            self.size = min(self.size * 2, MOST)
        elif now - self._taken_at >= _QUICK:
            self.size = max(self.size // 2, 1)
        self._full = count == self.size
        self._taken_at = now
