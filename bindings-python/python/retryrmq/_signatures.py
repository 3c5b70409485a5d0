"""What can be known of a function before it is called."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from .errors import InvalidTypeError


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine: an ``async def``, or an object whose ``__call__`` is one."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - the method itself is asked
    )


def checked_callable(what: str, function: object, how: str, *arguments: object) -> None:
    """Raises, naming ``what``, unless it can be called with these arguments, which ``how`` names."""
    if not callable(function):
        raise InvalidTypeError(f"{what} must be callable, not {type(function).__name__}")
    called: Any = function
    while isinstance(called, functools.partial):
        called = called.func
    for part in (called, getattr(called, "__call__", None)):  # noqa: B004 - the method itself is asked
        if inspect.isgeneratorfunction(part) or inspect.isasyncgenfunction(part):
            raise InvalidTypeError(f"{what} has a `yield`: calling it makes a generator, which nobody runs")
    signature = signature_of(function)
    if signature is None:
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise InvalidTypeError(f"{what} is called {how}: {error}") from None


def signature_of(function: Any) -> inspect.Signature | None:
    """Its signature; annotations may be text. ``None`` if it cannot tell.

    A function that wraps another has the other's signature only if it passes on whatever it gets. If it names its first parameter, this is what it
    is called with: it may decode the message itself.
    """
    # Since Python 3.14 annotations are evaluated here, and names that are only imported for type checkers would be errors.
    options: Any = {}
    if sys.version_info >= (3, 14):
        options["annotation_format"] = importlib.import_module("annotationlib").Format.FORWARDREF
    try:
        return inspect.signature(_innermost(function), follow_wrapped=False, **options)
    except (TypeError, ValueError):  # not callable, or some builtins, which cannot tell
        return None


def _innermost(function: Any) -> Any:
    """The function, or the one within it that gets its arguments as they are."""
    if isinstance(function, functools.partial):
        return functools.partial(_innermost(function.func), *function.args, **function.keywords)
    wrapped = getattr(function, "__wrapped__", None)
    if not callable(wrapped):
        # An object: what it wraps is in its method.
        method = getattr(type(function), "__call__", None)  # noqa: B004
        if isinstance(method, types.FunctionType) and hasattr(method, "__wrapped__"):
            return _innermost(types.MethodType(method, function))
        return function
    if _names_first_parameter(function):
        return function
    return _innermost(types.MethodType(wrapped, function.__self__) if inspect.ismethod(function) else wrapped)


def _names_first_parameter(function: Any) -> bool:
    try:
        own = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # as of `functools.lru_cache`
        return False
    return any(it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD) for it in own.parameters.values())


def name_of(function: Any) -> str:
    """How its author calls it."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__
