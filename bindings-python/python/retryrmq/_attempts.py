"""What workers on event loops and workers on threads share: how an attempt ends."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import cast

from . import _logs, outcome
from ._batch import messages_of
from ._greenlets import is_main_thread
from ._native import Message, Subscription
from .options import Plan

logger = _logs.logger("retryrmq.handler")

#: How long cancelled handlers may take to end, in seconds.
CANCEL_GRACE = 1.0
#: How long a worker pauses after an error that is not its handler's: what could not be read comes again at once.
FAULT_PAUSE = 0.5

#: How long after its timeout an attempt ends only because something blocks its event loop, in seconds.
BLOCKED_AFTER = 0.1
#: How many calls of a place are shown.
_MAX_FRAMES = 8


class TimedAttempt:
    """A message that is handled, and its deadline."""

    __slots__ = ("_timed_out", "deadline", "message")

    def __init__(self, message: Message, limit: float) -> None:
        self.message = message
        self.deadline = time.monotonic() + limit
        self._timed_out = False

    @property
    def is_late(self) -> bool:
        """Whether the timeout ends the attempt, or has ended it: not if the handler has settled its message before."""
        return self._timed_out or (time.monotonic() >= self.deadline and not self.message._is_settled)

    def time_out(self, end: outcome.End) -> None:
        """Ends the attempt."""
        self._timed_out = self.is_late
        self.message._settle(end)


def place_of(thread: int) -> str | None:
    """Where a thread is now: the calls of the handler that it runs, or the innermost ones, in one line. ``None`` if that cannot be seen, as
    of a greenlet."""
    frame = sys._current_frames().get(thread)
    calls: list[str] = []
    while frame is not None:
        code = frame.f_code
        if os.path.dirname(code.co_filename) != _HERE:
            calls.append(f"{code.co_name} ({code.co_filename}:{frame.f_lineno})")
        elif calls:  # what calls the handler
            break
        frame = frame.f_back
    return " < ".join(calls[:_MAX_FRAMES]) or None


#: As in the code of this package, which may have been compiled elsewhere.
_HERE = os.path.dirname(place_of.__code__.co_filename)


def is_ctrl_c(error: BaseException) -> bool:
    """Whether the error is Ctrl-C, which interrupted a function by chance and is not its failure."""
    return isinstance(error, KeyboardInterrupt) and is_main_thread()


def failed(plan: Plan, message: Message, error: BaseException) -> None:
    """Ends an attempt that raised. Never raises, because that would end the worker and leave its messages unsettled."""
    may_park = message._may_park()
    end = outcome.classify(error, plan.fatal, kinds=plan.native.has_rules, stack=may_park)
    try:
        message._settle(end)
    except BaseException as trouble:
        end = outcome.unreadable_error(error, trouble)
        message._settle(end)
    if end[0] != "defer" and logger.isEnabledFor(logging.DEBUG):
        with contextlib.suppress(BaseException):  # a user's logging filter may raise
            # The core logs what failed and what follows (`retryrmq.attempt`); only Python has the traceback.
            trace = (type(error), error, outcome.trace_of(error))
            fields = _logs.about(message, error_type=end[2] or None)
            _logs.log(logger, logging.DEBUG, "%s: the trace of %r", plan.queue, message, exc_info=trace, fields=fields)


def end_timed_out(plan: Plan, attempt: TimedAttempt) -> None:
    """Ends an attempt whose handler ran longer than its timeout. The handler goes on, or the worker cancels it."""
    attempt.time_out(outcome.timeout_end(cast("float", plan.native.handler_timeout)))


def requeue_unstarted(subscription: Subscription, unstarted: deque[Message]) -> None:
    """Requeues messages that no handler has begun. Others may take from ``unstarted`` meanwhile: each message is taken once.

    Before that the subscription must be closed, or they would come again at once.
    """
    returned = []
    with contextlib.suppress(IndexError):
        while True:
            returned.append(unstarted.popleft())
    if returned:
        subscription.give_back(messages_of(returned))


def log_outlasting(plan: Plan, messages: Iterable[Message], said: str, left: int) -> None:
    """Logs what becomes of handlers that outlast the drain. The core has warned of those whose messages are not settled, and of no others."""
    warned = not all(message._is_settled for message in messages)
    level = logging.INFO if warned else logging.WARNING
    _logs.log(logger, level, said, plan.queue, left, fields=_logs.about_queue(plan.queue, count=left))
