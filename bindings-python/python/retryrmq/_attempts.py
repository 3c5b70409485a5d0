"""What workers on event loops and workers on threads share: how an attempt ends, and how many messages to take next.

Messages are taken from the core in batches, which grow while handlers are quick: then taking messages does not slow them down. With a slow
handler the batches are small, so that no message waits behind it that another consumer could handle.
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

#: The most messages taken at once.
MOST = 64
#: How long cancelled handlers may take to end, in seconds.
GRACE = 1.0
#: A batch that took longer was too large.
_QUICK = 0.001


#: The attempt in whose context this code runs. It is also set in tasks of its handler, because the handler may wait for them.
within: contextvars.ContextVar[object] = contextvars.ContextVar("retryrmq.within", default=None)


def is_ctrl_c(error: BaseException) -> bool:
    """Whether the error is Ctrl-C, which interrupted a function by chance and is not its failure."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def failed(plan: Plan, message: Message, error: BaseException) -> None:
    """Ends an attempt that raised. Never raises, because that would end the worker and leave its messages unsettled."""
    may_park = message._may_park()
    end = outcome.judged(error, plan.fatal, kinds=plan.native.has_rules, stack=may_park)
    try:
        message._settle(end)
    except BaseException as trouble:
        end = outcome.undecided(error, trouble)
        message._settle(end)
    if end[0] != "defer" and logger.isEnabledFor(logging.DEBUG):
        with contextlib.suppress(BaseException):  # a user's logging filter may raise
            # The core logs what failed and what follows (`retryrmq.attempt`); only Python has the traceback.
            trace = (type(error), error, outcome.trace_of(error))
            logger.debug("%s: the trace of %r", plan.queue, message, exc_info=trace)


def timed_out(plan: Plan, message: Message) -> None:
    """Ends an attempt whose handler ran longer than its timeout. The handler goes on, or the worker cancels it."""
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
