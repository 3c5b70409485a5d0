"""What a handler can raise beside errors, and what becomes of what it raises."""

from __future__ import annotations

import builtins
import contextlib
import copyreg
import os
import traceback
from types import TracebackType
from typing import Any, TypeAlias

from . import _logs
from ._duration import Duration, seconds
from .errors import InvalidTypeError

logger = _logs.logger("retryrmq.handler")

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

    def __reduce__(self) -> tuple[Any, ...]:
        # Without __init__, which wants a delay that is not among `args`: for pickle and copy.
        return (copyreg.__newobj__, (type(self), *self.args), self.__dict__)  # type: ignore[attr-defined]


class Park(Exception):
    """Raised by a handler: the message is parked now, with this reason for people to read."""

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str):
            raise InvalidTypeError(f"`reason` must be a str, not {type(reason).__name__}")
        super().__init__(reason)


class Defer(Exception):
    """Raised by a handler: not now; the message comes back in ``delay``, and no attempt is spent."""

    def __init__(self, delay: Duration) -> None:
        self.delay = seconds(delay, "delay")
        super().__init__(f"deferred for {self.delay:g} s")

    def __reduce__(self) -> tuple[Any, ...]:
        # Without __init__, which wants a delay that is not among `args`: for pickle and copy.
        return (copyreg.__newobj__, (type(self), *self.args), self.__dict__)  # type: ignore[attr-defined]


def judged(
    error: BaseException,
    fatal: tuple[type[BaseException], ...] = (),
    *,
    kinds: bool = True,
    stack: bool = True,
) -> End:
    """The end of an attempt that raised ``error``.

    A signal (``RetryAfter``, ``Park``, ``Defer``) counts wherever it stands in the chain of explicit causes. ``kinds`` and
    ``stack`` say whether anybody wants to know the base classes and the trace; of what is parked at once, the trace is always
    kept. A group of one error is that error. Never raises, whatever people's exceptions do.
    """
    try:
        return _judged(error, fatal, kinds, stack)
    except BaseException as trouble:
        return undecided(error, trouble)


def undecided(error: BaseException, trouble: BaseException) -> End:
    """For an error that cannot be judged or handed over: a failed attempt, with what can be said of it."""
    name = _name(type(error))
    with contextlib.suppress(BaseException):  # a filter of somebody's logging may raise
        logger.error("a %s cannot be read; it counts as a failed attempt", name, exc_info=trouble)
    return ("retry", _text(error), name, [], None, None)


def too_late(limit: float) -> End:
    """The end of an attempt that took longer than ``limit`` seconds."""
    return ("retry", f"the handler took longer than {_written(limit)}", "HandlerTimeout", ["TimeoutError"], None, None)


def _written(seconds: float) -> str:
    """In the largest unit that leaves no remainder: as in every language."""
    ms = round(seconds * 1000)
    for name, unit in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms >= unit and ms % unit == 0:
            return f"{ms // unit}{name}"
    return f"{ms}ms"


def _judged(error: BaseException, fatal: tuple[type[BaseException], ...], kinds: bool, stack: bool) -> End:
    whole, error = error, _alone(error)
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
    elif isinstance(error, fatal) or isinstance(whole, fatal):
        what = "fatal"
    return (
        what,
        message,
        "" if own else _name(type(subject)),
        _kinds(subject) if kinds and not own else [],
        _stack(whole) if stack or what != "retry" else None,
        delay,
    )


#: Python 3.10 has none.
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())


def _alone(error: BaseException) -> BaseException:
    """The one error of a group: what one task of a ``TaskGroup`` raised. Of several, none can speak for all."""
    one: Any = error
    while isinstance(one, _GROUP) and len(one.exceptions) == 1 and one.__cause__ is None:
        one = one.exceptions[0]
    return one  # type: ignore[no-any-return]


def _signal(error: BaseException) -> BaseException | None:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, RetryAfter | Park | Defer):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__
    return None


def sayable(text: str) -> str:
    """With escapes for lone surrogates, which are in no UTF-8: names of files have them, and badly read JSON."""
    return text if str.isascii(text) else str.encode(text, "utf-8", "backslashreplace").decode()


def trace_of(error: BaseException) -> TracebackType | None:
    """The trace without our own frames at its top."""
    trace = error.__traceback__
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) == _HERE:
        trace = trace.tb_next
    return trace


_HERE = os.path.dirname(__file__)


def _name(kind: type) -> str:
    try:
        return sayable(kind.__name__)
    except BaseException:  # a metaclass may do anything
        return "Exception"


def described(error: BaseException) -> str:
    """Its kind and what it says, in one line of a log. Never raises."""
    name, text = _name(type(error)), _text(error, "")
    return f"{name}: {text}" if text else name


def _text(error: BaseException, otherwise: str | None = None) -> str:
    """What it says; people's ``__str__`` may do anything."""
    name = _name(type(error))
    try:
        text = sayable(str(error))
    except BaseException:
        text = f"<the text of {name} cannot be had: its __str__ raises>"
    return text or (name if otherwise is None else otherwise)


def _kinds(error: BaseException) -> list[str]:
    return [_name(kind) for kind in type(error).__mro__[1:] if kind is not object]


def _stack(error: BaseException) -> str | None:
    """The trace with its chain of causes. The core cuts it from the middle."""
    try:
        return sayable("".join(traceback.format_exception(type(error), error, trace_of(error))))
    except BaseException:
        return None
