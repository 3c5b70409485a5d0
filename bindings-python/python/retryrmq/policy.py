"""Retry policies, and the rules that choose one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from . import _native
from ._duration import Duration, text
from .errors import InvalidOptionError, InvalidTypeError


class Policy:
    """How long a failed message waits, and how often it is retried before it is parked.

    Made by :func:`exponential`, :func:`fixed`, :func:`linear` or :func:`list`, or from a string, which is the same in every language:
    ``Policy("exponential(1s, factor=4, max=5m, retries=5)")``. Raises :class:`InvalidPolicyError` for any other string.
    """

    __slots__ = ("_delays", "_retries", "_text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidTypeError(f"a policy is a string such as 'fixed(5s, retries=3)', not {type(text).__name__}")
        self._text, self._retries, self._delays = _native.policy(text)

    @property
    def retries(self) -> int:
        """How many retries a message gets before it is parked. Attempts are one more."""
        return self._retries

    @property
    def delays(self) -> tuple[timedelta, ...]:
        """The delays before the retries, without jitter; at most the first 1000."""
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
    """Delays that are multiplied by ``factor`` (4) with each retry, from ``initial`` (1 second) up to ``max`` (5 minutes); 5 retries.

    ``jitter`` (0 to 0.9) multiplies each delay by ``1 - jitter``, ``1 - jitter / 2`` or 1, at random. ``max_age``: a message is parked as
    ``too-old`` if its next attempt would be later than this after its first failure, or with ``age_from="published"`` after its AMQP
    timestamp. Raises :class:`InvalidPolicyError` for a policy that cannot work.
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
    """The same delay before every retry; 5 retries. The other arguments are those of :func:`exponential`."""
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
    """Delays that grow by ``step`` (1 second) with each retry, from ``initial`` up to ``max`` (5 minutes); 5 retries.

    The other arguments are those of :func:`exponential`.
    """
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
    """These delays, one after the other. By default there are as many retries as delays; with more retries the last delay repeats.

    The other arguments are those of :func:`exponential`.
    """
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
    """A policy for messages that meet conditions. The first rule whose conditions all match decides.

    ``routing_key`` is a topic pattern as in bindings (``"eu.#"``). ``headers`` maps names to values; ``*`` in a value matches any text.
    ``error`` is an exception class (subclasses match too) or a pattern for its name (``"*Timeout"``). As a string:
    ``"routing_key=eu.#, error=*Timeout => fixed(5s, retries=3)"``.

    Rules are the same in every language, so only the name of a class is compared, without its module: ``TimeoutError`` also matches
    another package's ``TimeoutError``. To tell them apart, catch one in the handler and raise :class:`RetryAfter`.
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
        self._parts: dict[str, Any] = {
            "policy": str(policy),
            "routing_key": routing_key,
            "headers": conditions,
            "error": error,
        }

    def _texts(self) -> Iterator[str]:
        """The texts of its conditions."""
        for name in ("routing_key", "error"):
            if self._parts[name] is not None:
                yield self._parts[name]
        for condition in self._parts["headers"].items():
            yield from condition

    def __repr__(self) -> str:
        policy, *conditions = self._parts.items()
        return f"Rule({policy[1]!r}, {', '.join(f'{name}={value!r}' for name, value in conditions)})"
