"""Retry policies and the rules that choose among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal

from . import _native
from ._duration import Duration, text
from .errors import InvalidOptionError, InvalidTypeError


class Policy:
    """How long a failed message waits, and how often it comes back before it is parked.

    Made by :func:`exponential`, :func:`fixed`, :func:`linear` or :func:`list`, or from the text that every language
    reads: ``Policy("exponential(1s, factor=4, max=5m, retries=5)")``.
    """

    __slots__ = ("_delays", "_retries", "_text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidTypeError(f"a policy is a text such as 'fixed(5s, retries=3)', not {type(text).__name__}")
        self._text, self._retries, self._delays = _native.policy(text)

    @property
    def retries(self) -> int:
        """How many retries there are before a message is parked; attempts are one more."""
        return self._retries

    @property
    def delays(self) -> tuple[timedelta, ...]:
        """The delay before each retry, before jitter."""
        return tuple(timedelta(seconds=delay) for delay in self._delays)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Policy({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def _policy(
    name: str,
    arguments: tuple[str, ...],
    numbers: Mapping[str, float | None],
    durations: Mapping[str, Duration | None],
    age_from: str | None,
) -> Policy:
    parts = [*arguments]
    for option, number in numbers.items():
        if number is None:
            continue
        if option == "retries" and (isinstance(number, bool) or not isinstance(number, int)):
            raise InvalidTypeError(f"`retries` must be an int, not {type(number).__name__}")
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise InvalidTypeError(f"`{option}` must be a number, not {type(number).__name__}")
        parts.append(f"{option}={number}")
    parts += [f"{option}={text(value, option)}" for option, value in durations.items() if value is not None]
    if age_from is not None:
        if age_from not in ("first-failure", "published"):
            raise InvalidOptionError(f"`age_from` must be 'first-failure' or 'published', not {age_from!r}")
        parts.append(f"age_from={age_from}")
    return Policy(f"{name}({', '.join(parts)})")


_AgeFrom = Literal["first-failure", "published"]


def exponential(
    initial: Duration = "1s",
    *,
    factor: float | None = None,
    max: Duration | None = None,
    retries: int | None = None,
    jitter: float | None = None,
    max_age: Duration | None = None,
    age_from: _AgeFrom | None = None,
) -> Policy:
    """Delays that grow by ``factor`` (4) from ``initial`` up to ``max`` (5 minutes); 5 retries.

    ``jitter`` (0 to 0.9) spreads a burst over three delays up to that share shorter. A message whose next attempt would
    come later than ``max_age`` after its first failure (or its publication, by ``age_from``) is parked.
    """
    return _policy(
        "exponential",
        (text(initial, "initial"),),
        {"factor": factor, "retries": retries, "jitter": jitter},
        {"max": max, "max_age": max_age},
        age_from,
    )


def fixed(
    delay: Duration,
    *,
    retries: int | None = None,
    jitter: float | None = None,
    max_age: Duration | None = None,
    age_from: _AgeFrom | None = None,
) -> Policy:
    """The same delay every time; 5 retries."""
    return _policy(
        "fixed",
        (text(delay, "delay"),),
        {"retries": retries, "jitter": jitter},
        {"max_age": max_age},
        age_from,
    )


def linear(
    initial: Duration,
    *,
    step: Duration | None = None,
    max: Duration | None = None,
    retries: int | None = None,
    jitter: float | None = None,
    max_age: Duration | None = None,
    age_from: _AgeFrom | None = None,
) -> Policy:
    """Delays that grow by ``step`` up to ``max``; 5 retries."""
    return _policy(
        "linear",
        (text(initial, "initial"),),
        {"retries": retries, "jitter": jitter},
        {"step": step, "max": max, "max_age": max_age},
        age_from,
    )


def list(
    *delays: Duration,
    retries: int | None = None,
    jitter: float | None = None,
    max_age: Duration | None = None,
    age_from: _AgeFrom | None = None,
) -> Policy:
    """These delays, one after the other; as many retries as delays, and the last one repeats if there are more."""
    if any(isinstance(delay, Sequence) and not isinstance(delay, str) for delay in delays):
        raise InvalidTypeError("`delays` are given one by one, as in retryrmq.list('1s', '10s'), not as a list")
    return _policy(
        "list",
        tuple(text(delay, "delays") for delay in delays),
        {"retries": retries, "jitter": jitter},
        {"max_age": max_age},
        age_from,
    )


class Rule:
    """Another policy under conditions; the first rule whose conditions all hold decides.

    ``routing_key`` is a topic pattern as in bindings (``"eu.#"``), ``headers`` maps names to values in which ``*`` is any
    text, ``error`` is an exception class (subclasses too) or a pattern for its name (``"*Timeout"``). As text:
    ``"routing_key=eu.#, error=*Timeout => fixed(5s, retries=3)"``.

    Of a class only the name is compared, without its module, as rules are the same in every language: ``TimeoutError`` is also
    another package's ``TimeoutError``. To tell them apart, catch one in the handler, and raise :class:`RetryAfter`.
    """

    __slots__ = ("_parts",)

    def __init__(
        self,
        policy: Policy | str,
        *,
        routing_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        error: type[BaseException] | str | None = None,
    ) -> None:
        if not isinstance(policy, Policy):
            policy = Policy(policy)
        if routing_key is not None and not isinstance(routing_key, str):
            raise InvalidTypeError(f"`routing_key` must be a str, not {type(routing_key).__name__}")
        if isinstance(error, type) and issubclass(error, BaseException):
            error = error.__name__
        elif error is not None and not isinstance(error, str):
            raise InvalidTypeError(f"`error` must be an exception class or a pattern, not {error!r}")
        if headers is not None and not isinstance(headers, Mapping):
            raise InvalidTypeError(f"`headers` must be a mapping, not {type(headers).__name__}")
        conditions = {str(name): str(value) for name, value in (headers or {}).items()}
        if routing_key is None and not conditions and error is None:
            raise InvalidOptionError("a rule needs a condition: `routing_key`, `headers` or `error`")
        self._parts = {"policy": str(policy), "routing_key": routing_key, "headers": conditions, "error": error}

    def __repr__(self) -> str:
        policy, *conditions = self._parts.items()
        return f"Rule({policy[1]!r}, {', '.join(f'{name}={value!r}' for name, value in conditions)})"
