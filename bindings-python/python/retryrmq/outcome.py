"""What a handler can raise besides errors, and what happens to the message then."""

from __future__ import annotations

import builtins
import contextlib
import copyreg
import os
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeAlias

from . import _logs, _native
from ._duration import Duration, seconds
from .errors import InvalidTypeError

logger = _logs.logger("retryrmq.handler")

#: The end of an attempt as the native half takes it: what, error, error type, further types, stack, delay in seconds.
End: TypeAlias = tuple[str, str, str, list[str], str | None, float | None]

ACK: End = ("ack", "", "", [], None, None)


class RetryAfter(Exception):
    """Raise it in a handler: the attempt failed; retry after ``delay``, whatever the policy's delay is.

    It counts as a retry; if no retries are left, the message is parked. ``raise RetryAfter("30s") from error`` records ``error`` as the
    failure. Without ``dlx`` the message is rejected.
    """

    def __init__(self, delay: Duration, message: str = "") -> None:
        self.delay = seconds(delay, "delay")
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without __init__, which wants a delay that is not among `args`: for pickle and copy.
        return (copyreg.__newobj__, (type(self), *self.args), self.__dict__)  # type: ignore[attr-defined]


class Park(Exception):
    """Raise it in a handler: the message is parked now as ``requested``.

    ``reason`` is written into its record, for people to read. Without ``dlx`` the message is rejected.
    """

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str):
            raise InvalidTypeError(f"`reason` must be a str, not {type(reason).__name__}")
        super().__init__(reason)


class Defer(Exception):
    """Raise it in a handler: not now; the message is delivered again after ``delay``, and uses up no attempt.

    After ``defer_limit`` deferrals it is parked as ``exhausted``. Without ``dlx`` the consumer holds the message for at most a minute, then
    publishes a copy to the tail of its queue; after ``defer_limit`` deferrals it is rejected.
    """

    def __init__(self, delay: Duration) -> None:
        self.delay = seconds(delay, "delay")
        super().__init__(f"deferred for {_native.duration_text(self.delay)}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Without __init__, which wants a delay that is not among `args`: for pickle and copy.
        return (copyreg.__newobj__, (type(self), *self.args), self.__dict__)  # type: ignore[attr-defined]


class Undecodable(Exception):
    """Raise it in a handler: the body is not what the handler reads; the message is parked now as ``undecodable``.

    ``reason`` is written into its record, for people to read. ``raise Undecodable() from error`` records ``error``. Without ``dlx`` the
    message is rejected. A handler whose first parameter is annotated with the type of the body raises it for an invalid body.
    """

    #: Of an invalid body: the name of the validator's error and of its base classes, and whether the message is retried.
    _error_type = ""
    _kinds: Sequence[str] = ()
    _is_retried = False

    def __init__(self, reason: str = "") -> None:
        if not isinstance(reason, str):
            raise InvalidTypeError(
                f"`reason` must be a str, not {type(reason).__name__}; write `raise Undecodable() from error` for an error"
            )
        super().__init__(reason)


def invalid_body(reason: str, error_type: str, kinds: Sequence[str], is_retried: bool) -> Undecodable:
    """For a body that its validator refuses."""
    error = Undecodable(reason)
    error._error_type, error._kinds, error._is_retried = error_type, kinds, is_retried
    return error


def classify(
    error: BaseException,
    fatal: tuple[type[BaseException], ...] = (),
    *,
    kinds: bool = True,
    stack: bool = True,
) -> End:
    """The end of an attempt that raised ``error``.

    A signal (``RetryAfter``, ``Park``, ``Defer``, ``Undecodable``) may stand anywhere in the chain of explicit causes. ``kinds`` and ``stack`` say whether
    the base classes and the trace are needed; the trace is always kept if the message is parked at once. A group with one error counts as
    that error. Never raises, whatever the code of user exceptions does.
    """
    try:
        return _classify(error, fatal, kinds, stack)
    except BaseException as trouble:
        return unreadable_error(error, trouble)


def unreadable_error(error: BaseException, trouble: BaseException) -> End:
    """The end of an attempt whose error cannot be judged or passed on: a failed attempt, with what can be read of the error."""
    name = _name(type(error))
    with contextlib.suppress(BaseException):  # a filter of somebody's logging may raise
        logger.error("a %s cannot be read; it counts as a failed attempt", name, exc_info=trouble)
    return ("retry", _text(error), name, [], None, None)


def requested_end(error: BaseException) -> str:
    """What an attempt that raised ``error`` asks for, as the native half calls it. Never raises."""
    try:
        signal = _signal(_unwrap_group(error))
    except BaseException:
        return "retry"
    if isinstance(signal, Undecodable) and not signal._is_retried:
        return "undecodable"
    return "defer" if isinstance(signal, Defer) else "park" if isinstance(signal, Park) else "retry"


def error_type_of(error: BaseException) -> str:
    """The error type as the record has it; of a signal without a cause, the name of its class. Never raises."""
    return classify(error, kinds=False, stack=False)[2] or _name(type(_unwrap_group(error)))


def timeout_end(limit: float) -> End:
    """The end of an attempt that took longer than ``limit`` seconds."""
    error = f"the handler took longer than {_native.duration_text(limit)}"
    return ("retry", error, "HandlerTimeout", ["TimeoutError"], None, None)


def _classify(error: BaseException, fatal: tuple[type[BaseException], ...], kinds: bool, stack: bool) -> End:
    whole, error = error, _unwrap_group(error)
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
    elif isinstance(signal, Undecodable):
        what = "retry" if signal._is_retried else "undecodable"
        message = _text(signal, "") or ("the handler cannot read the body" if own else message)
        if own and signal._error_type:
            return (what, message, signal._error_type, list(signal._kinds), None, None)
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


def _unwrap_group(error: BaseException) -> BaseException:
    """The one error of a group, such as the error of one task of a ``TaskGroup``. A group of several stays a group."""
    one: Any = error
    while isinstance(one, _GROUP) and len(one.exceptions) == 1 and one.__cause__ is None:
        one = one.exceptions[0]
    return one  # type: ignore[no-any-return]


def _signal(error: BaseException) -> BaseException | None:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, RetryAfter | Park | Defer | Undecodable):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__
    return None


def utf8_safe(text: str) -> str:
    """Escapes lone surrogates, which UTF-8 cannot encode. Names of files have them, and badly read JSON."""
    return text if str.isascii(text) else str.encode(text, "utf-8", "backslashreplace").decode()


def trace_of(error: BaseException) -> TracebackType | None:
    """The traceback without our own frames at its top."""
    trace = error.__traceback__
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) == _HERE:
        trace = trace.tb_next
    return trace


_HERE = os.path.dirname(__file__)


def _name(kind: type) -> str:
    try:
        return utf8_safe(kind.__name__)
    except BaseException:  # a metaclass may do anything
        return "Exception"


def described(error: BaseException) -> str:
    """The type and text of an error, in one log line. Never raises."""
    name, text = _name(type(error)), _text(error, "")
    return f"{name}: {text}" if text else name


def _text(error: BaseException, otherwise: str | None = None) -> str:
    """The text of an error. A user's ``__str__`` may raise."""
    name = _name(type(error))
    try:
        text = utf8_safe(str(error))
    except BaseException:
        text = f"<no error text: {name}.__str__ raises>"
    return text or (name if otherwise is None else otherwise)


def _kinds(error: BaseException) -> list[str]:
    return [_name(kind) for kind in type(error).__mro__[1:] if kind is not object]


def _stack(error: BaseException) -> str | None:
    """The trace with its chain of causes. The core cuts it from the middle."""
    try:
        return utf8_safe("".join(traceback.format_exception(type(error), error, trace_of(error))))
    except BaseException:
        return None
