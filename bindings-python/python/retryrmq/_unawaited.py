"""Finds calls that a handler forgot to await: they have done nothing, and its message must not be acknowledged."""

from __future__ import annotations

import contextvars
import functools
import inspect
import sys
import types
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar, cast

_Method = TypeVar("_Method", bound=Callable[..., Coroutine[Any, Any, Any]])

#: How many calls of an attempt are remembered before those that were awaited are forgotten.
_MAX_CALLS = 64


#: Since Python 3.12.
_mark_coroutine_function: Callable[[Any], Any] | None = getattr(inspect, "markcoroutinefunction", None)


class _CoroutineMethod:
    """A method that `asyncio` and `inspect` take for the one it calls, in Python before 3.12. Who asks them whether to await what it returns, such
    as a web framework for its background tasks, would otherwise drop it.

    They ask for the flags of a function's code, also of something that only looks like a function.
    """

    def __init__(self, method: Any, call: Any) -> None:
        functools.update_wrapper(self, method)
        self.__code__ = method.__code__
        self.__defaults__ = method.__defaults__
        self.__kwdefaults__ = method.__kwdefaults__
        self._call = call

    def __get__(self, of: Any, _: Any = None) -> Any:
        return self if of is None else types.MethodType(self, of)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._call(*args, **options)


class _Call(NamedTuple):
    made: Coroutine[Any, Any, Any]
    #: How a handler writes it, and how a ``def`` handler does the same; empty if it cannot.
    name: str
    blocking: str
    who: str = "the handler"


class AttemptMark:
    """An attempt, in the context of its handler."""

    __slots__ = ("calls", "most", "timed")

    def __init__(self) -> None:
        #: The attempt's :class:`_attempts.TimedAttempt`, if it has a time limit.
        self.timed: Any = None
        #: The coroutines of the methods that the handler called, with the names of each.
        self.calls: list[_Call] = []
        self.most = _MAX_CALLS

    def called(self, call: _Call) -> None:
        """Remembers a call of an asynchronous method."""
        calls = self.calls
        calls.append(call)
        if len(calls) > self.most:
            calls[:] = [call for call in calls if _is_new(call.made)]
            self.most = max(_MAX_CALLS, 2 * len(calls))

    def check(self, is_async: bool) -> None:
        """Raises if a call was forgotten. Called when the handler has returned."""
        # One that somebody else holds can still be awaited: its task may begin later. In this order: nobody can begin what nobody else holds.
        forgotten = [call for call in self.calls if _references(call) <= _OWN_REFERENCES and _is_new(call.made)]
        self.calls = []
        if not forgotten:
            return
        for call in forgotten:
            call.made.close()  # without Python's warning
        _, name, blocking, who = forgotten[0]
        if is_async:
            write = f"`await {name}(…)`"
        elif blocking:
            write = f"`{blocking}(…)` in a `def` handler, or `async def` for the handler and `await {name}(…)`"
        else:
            write = f"`async def` for the handler, and `await {name}(…)`"
        raise TypeError(f"{who} called `{name}(…)` and did not await it, so nothing was done; write {write}")


#: The attempt in whose context this code runs. It is also set in tasks of its handler, because the handler may wait for them.
current_attempt: contextvars.ContextVar[AttemptMark | None] = contextvars.ContextVar(
    "retryrmq.current_attempt", default=None
)


def must_be_awaited(name: str, blocking: str = "") -> Callable[[_Method], _Method]:
    """Decorates a method that does nothing before it is awaited, with how a handler writes it, and how a ``def`` handler does the same."""

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def call(*args: Any, **options: Any) -> Coroutine[Any, Any, Any]:
            made = method(*args, **options)
            mark = current_attempt.get()
            if mark is not None:
                mark.called(_Call(made, name, blocking))
            return made

        return cast(
            "_Method",
            _CoroutineMethod(method, call) if _mark_coroutine_function is None else _mark_coroutine_function(call),
        )

    return decorate


def track_call(mark: AttemptMark | None, made: Any, name: str, who: str) -> Any:
    """Remembers a coroutine that ``who`` has made by calling ``name`` and must await. Returns it."""
    if mark is not None and type(made) is types.CoroutineType:
        mark.called(_Call(made, name, "", who))
    return made


def _is_new(call: Any) -> bool:
    return inspect.getcoroutinestate(call) == inspect.CORO_CREATED


def _references(call: _Call) -> int:
    return sys.getrefcount(call.made)


async def _nothing() -> None: ...


def _own_references() -> int:
    call = _Call(_nothing(), "", "")
    try:
        return _references(call)
    finally:
        call.made.close()


#: How many references there are to a coroutine that only a mark holds. It differs between versions of Python.
_OWN_REFERENCES = _own_references()
