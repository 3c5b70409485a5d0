"""What a handler can raise beside errors, and what becomes of what it raises."""

from __future__ import annotations

import traceback
from typing import TypeAlias

from ._duration import Duration, seconds

#: The end of an attempt as the native half takes it: what, error, error type, further types, stack, delay in seconds.
End: TypeAlias = tuple[str, str, str, list[str], str | None, float | None]

ACK: End = ("ack", "", "", [], None, None)


class RetryAfter(Exception):
    """Raised by a handler: the attempt failed, and the message comes back in ``delay``, whatever the policy says.

    It counts as a retry. ``raise RetryAfter("30s") from error`` keeps the error as what went wrong.
    """

    def __init__(self, delay: Duration, message: str = "") -> None:
        self.delay = seconds(delay, "delay")
        super().__init__(message)


class Park(Exception):
    """Raised by a handler: the message is parked now, with this reason for people to read."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Defer(Exception):
    """Raised by a handler: not now; the message comes back in ``delay``, and no attempt is spent."""

    def __init__(self, delay: Duration) -> None:
        self.delay = seconds(delay, "delay")
        super().__init__(f"deferred for {self.delay:g} s")


def judged(
    error: BaseException,
    fatal: tuple[type[BaseException], ...] = (),
    *,
    kinds: bool = True,
    stack: bool = True,
) -> End:
    """The end of an attempt that raised ``error``.

    A signal (``RetryAfter``, ``Park``, ``Defer``) counts wherever it stands in the chain of explicit causes. ``kinds`` and
    ``stack`` say whether anybody wants to know the base classes and the trace.
    """
    signal = _signal(error)
    if isinstance(signal, Defer):
        return ("defer", "", "", [], None, signal.delay)
    subject: BaseException = error
    if signal is error and error.__cause__ is not None:
        subject = error.__cause__
    own = signal is not None and subject is signal
    what, delay = "retry", None
    message = _text(subject)
    if isinstance(signal, RetryAfter):
        what, delay = "retry", signal.delay
        message = _text(signal, "") or ("the handler asked for a retry" if own else message)
    elif isinstance(signal, Park):
        what, message = "park", _text(signal)
    elif isinstance(error, fatal):
        what = "fatal"
    return (
        what,
        message,
        "" if own else type(subject).__name__,
        _kinds(subject) if kinds and not own else [],
        _stack(error) if stack else None,
        delay,
    )


def _signal(error: BaseException) -> BaseException | None:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, RetryAfter | Park | Defer):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__
    return None


def _text(error: BaseException, otherwise: str | None = None) -> str:
    """What it says; people's ``__str__`` may do anything."""
    try:
        text = str(error)
    except BaseException:
        text = f"<the text of {type(error).__name__} cannot be had: its __str__ raises>"
    return text or (type(error).__name__ if otherwise is None else otherwise)


def _kinds(error: BaseException) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__[1:] if kind is not object]


def _stack(error: BaseException) -> str | None:
    """The trace with its chain of causes, without our own frame at its top. The core cuts it from the middle."""
    trace = error.__traceback__
    try:
        lines = traceback.format_exception(type(error), error, trace.tb_next if trace else None)
    except BaseException:
        return None
    return "".join(lines)
