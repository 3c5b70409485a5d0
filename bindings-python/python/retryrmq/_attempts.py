"""What workers on event loops and workers on threads share: how an attempt ends."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Iterable
from typing import cast

from . import _logs, outcome
from ._native import Message, Subscription
from .options import Plan

logger = _logs.logger("retryrmq.handler")

#: How long cancelled handlers may take to end, in seconds.
GRACE = 1.0
#: How long a worker pauses after an error that is not its handler's: what could not be read comes again at once.
FAULT_PAUSE = 0.5

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


def return_the_unstarted(subscription: Subscription, unstarted: deque[Message]) -> None:
    """Requeues messages that no handler has begun. Others may take from ``unstarted`` meanwhile: each message is taken once.

    Before that the subscription must be closed, or they would come again at once.
    """
    returned = []
    with contextlib.suppress(IndexError):
        while True:
            returned.append(unstarted.popleft())
    if returned:
        subscription.give_back(returned)


def outlasted(plan: Plan, messages: Iterable[Message], said: str, left: int) -> None:
    """Logs what becomes of handlers that outlast the drain. The core has warned of those whose messages are not settled, and of no others."""
    warned = not all(message._is_settled for message in messages)
    logger.log(logging.INFO if warned else logging.WARNING, said, plan.queue, left)
