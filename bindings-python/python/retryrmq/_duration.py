"""Durations: ``timedelta`` or a string such as ``"5s"``, never a bare number."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from . import _native
from .errors import InvalidOptionError, InvalidTypeError

#: A ``timedelta``, or a string such as ``"250ms"``, ``"1s"``, ``"5m"`` or ``"1h30m"``.
Duration: TypeAlias = str | timedelta


def seconds(value: Duration, option: str) -> float:
    """The duration in seconds. Raises with the name of the option."""
    if isinstance(value, str):
        try:
            return _native.parse_duration(value)
        except InvalidOptionError as error:
            raise InvalidOptionError(f"`{option}`: {error}") from None
    if isinstance(value, timedelta):
        total = value.total_seconds()
        if total < 0:
            raise InvalidOptionError(f"`{option}` is negative ({value!r}); a duration is at least 0")
        return total
    raise InvalidTypeError(f"`{option}` must be a timedelta or a string such as '5s', not {type(value).__name__}")


def text(value: Duration, option: str) -> str:
    """The duration as text, for a policy."""
    milliseconds = round(seconds(value, option) * 1000)
    return f"{milliseconds}ms"
