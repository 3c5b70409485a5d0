"""Checks what a handler returned. It is ignored, unless it is work that would never run."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import inspect
import itertools
import types
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator
from typing import Any

from ._message import Settled
from .outcome import Defer, Park, RetryAfter, Undecodable

#: How many elements of a returned container are checked.
_MAX_ELEMENTS = 1_000
_METHODS = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, *_METHODS)
#: They call functions, or run iterators, only while they are iterated over, and do not show whether they were.
_LAZY_ITERATORS = (
    map,
    filter,
    zip,
    enumerate,
    itertools.accumulate,
    itertools.chain,
    itertools.compress,
    itertools.cycle,
    itertools.dropwhile,
    itertools.filterfalse,
    itertools.groupby,
    itertools.islice,
    itertools.pairwise,
    itertools.starmap,
    itertools.takewhile,
    itertools.zip_longest,
    # Since Python 3.12.
    *filter(None, [getattr(itertools, "batched", None)]),
)


def check(result: Any, is_async: bool, who: str = "the handler") -> None:
    """Raises if the message must not be acknowledged: for a coroutine that nobody awaits, a generator or a `map` that nobody runs, a function
    that nobody calls, a future that is not done. For a future that is done, its result or error counts. A returned signal counts as raised.

    ``who`` returned it. It looks only at types, because a returned value may be a proxy that raises at every access.
    """
    kind = type(result)
    if issubclass(kind, RetryAfter | Park | Defer | Undecodable):
        raise result
    if kind in (list, tuple, set, dict):
        _check_all(kind, result.values() if kind is dict else result, is_async, who)
    elif hasattr(kind, "_asyncio_future_blocking") or issubclass(kind, concurrent.futures.Future):
        _check_future(kind, result, is_async, who)
    elif is_unawaited(result):
        write = f"`return await {_call_text(result)}`" if is_async else "`async def` for the handler, and await it"
        _close_unawaited(result)
        raise TypeError(f"{who} returned {_described(result)}, which nobody awaits; write {write}")
    elif issubclass(kind, Generator | AsyncGenerator):
        if not _has_finished(result):
            raise TypeError(
                f"{who} returned {_described(result)}, which nobody runs; do the work before returning, in a loop over it "
                "for example"
            )
    elif issubclass(kind, _LAZY_ITERATORS):
        raise TypeError(
            f"{who} returned {_described(result)}, which does nothing before somebody iterates over it; do the work before "
            "returning, in a loop for example"
        )
    elif issubclass(kind, (*_FUNCTIONS, functools.partial)):
        raise TypeError(f"{who} returned {_described(result)}, which nobody calls; call it before returning")


def is_unawaited(result: Any) -> bool:
    """Whether it is an awaitable that nobody has awaited."""
    return issubclass(type(result), Awaitable) and type(result) is not Settled and not _has_finished(result)


def _check_all(kind: type, results: Any, is_async: bool, who: str) -> None:
    undone = [
        result for result in itertools.islice(results, _MAX_ELEMENTS) if is_unawaited(result) and not _is_done(result)
    ]
    if undone:
        for result in undone:
            _close_unawaited(result)
        write = (
            "`return await asyncio.gather(*…)`" if is_async else "`async def`, and `return await asyncio.gather(*…)`"
        )
        raise TypeError(
            f"{who} returned a {kind.__name__} with {_described(undone[0])}, which nobody awaits; write {write}"
        )


def _check_future(kind: type, future: Any, is_async: bool, who: str) -> None:
    if future.done():
        future.result()
        return
    if issubclass(kind, concurrent.futures.Future):
        how = "wait for its `result()`, in an `async def` by `await asyncio.wrap_future(…)`"
    else:
        how = "write `return await …`" if is_async else "write `async def` for the handler, and await it"
    raise TypeError(f"{who} returned a {kind.__name__} that is not done; {how}")


def _is_done(result: Any) -> bool:
    return hasattr(type(result), "_asyncio_future_blocking") and bool(result.done())


def _has_finished(result: Any) -> bool:
    """Whether a coroutine or a generator has run to its end."""
    kind = type(result)
    if kind is types.CoroutineType:
        return inspect.getcoroutinestate(result) == inspect.CORO_CLOSED
    if kind is types.GeneratorType:
        return inspect.getgeneratorstate(result) == inspect.GEN_CLOSED
    return kind is types.AsyncGeneratorType and result.ag_frame is None


def _close_unawaited(result: Any) -> None:
    """Closes a coroutine, without the warning that it was never awaited: our error says so."""
    if issubclass(type(result), Coroutine) and not _has_started(result):
        with contextlib.suppress(BaseException):
            result.close()


def _has_started(result: Any) -> bool:
    return type(result) is types.CoroutineType and inspect.getcoroutinestate(result) != inspect.CORO_CREATED


def _call_text(result: Any) -> str:
    return f"{result.__name__}(…)" if type(result) is types.CoroutineType else "…"


def _described(result: Any) -> str:
    kind = type(result)
    for what, kinds in (
        ("coroutine", types.CoroutineType),
        ("generator", types.GeneratorType),
        ("async generator", types.AsyncGeneratorType),
        ("method", _METHODS),
        ("function", types.FunctionType),
    ):
        if issubclass(kind, kinds):
            return f"the {what} `{result.__qualname__}`"
    return f"a {kind.__name__}"
