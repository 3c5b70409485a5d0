"""What a handler raises becomes what the core is told; people's exceptions may do anything."""

from __future__ import annotations

import asyncio
import builtins
import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
import retryrmq
from retryrmq.errors import _from_code
from retryrmq.outcome import classify, timeout_end


def _pickled(protocol: int) -> Callable[[BaseException], BaseException]:
    return lambda error: pickle.loads(pickle.dumps(error, protocol))  # type: ignore[no-any-return]


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


class Evil(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def test_an_error_retries_with_its_type_its_bases_and_its_trace() -> None:
    what, error, kind, kinds, stack, delay = classify(raised(ConnectionResetError("gone"), ValueError("first")))
    assert (what, error, kind, delay) == ("retry", "gone", "ConnectionResetError", None)
    assert kinds == ["ConnectionError", "OSError", "Exception", "BaseException"]
    assert stack is not None
    assert "ValueError: first" in stack and "direct cause" in stack and "ConnectionResetError: gone" in stack


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
def test_what_no_handler_should_raise_is_a_failed_attempt(error: BaseException) -> None:
    assert classify(raised(error))[0] == "retry"
    assert classify(raised(error))[2] == type(error).__name__


def test_a_text_that_cannot_be_had() -> None:
    end = classify(raised(Evil()))
    assert end[0] == "retry"
    assert "Evil" in end[1]
    assert end[4] is not None and "Evil" in end[4]


class Named(type):
    __name__ = property(lambda self: "Bad\udc80")  # type: ignore[assignment]


class Bad(ValueError, metaclass=Named):
    pass


def test_lone_surrogates_are_escaped_everywhere() -> None:
    what, error, error_type, kinds, stack, _ = classify(raised(Bad("report\udcff.pdf")))
    assert (what, error, error_type, kinds[0]) == ("retry", "report\\udcff.pdf", "Bad\\udc80", "ValueError")
    assert stack is not None and "report\\udcff.pdf" in stack
    stack.encode()
    assert classify(raised(retryrmq.Park("no \udcff")))[1] == "no \\udcff"


class NoCause(Exception):
    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        raise SystemExit(5)


class Unfinished(retryrmq.RetryAfter):
    def __init__(self) -> None: ...


@pytest.mark.parametrize("error", [NoCause("tricky"), Unfinished()])
def test_an_error_that_cannot_be_judged_is_a_failed_attempt(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    end = classify(error)
    assert end == ("retry", str(error) or "Unfinished", type(error).__name__, [], None, None)
    assert "ERROR" in [record.levelname for record in caplog.records]  # another test's client may log after it


def test_what_is_parked_at_once_keeps_its_trace() -> None:
    assert classify(raised(ValueError("a")), stack=False)[4] is None
    for error in (raised(retryrmq.Park("why"), ValueError("a")), raised(ValueError("a"))):
        stack = classify(error, (ValueError,), stack=False)[4]
        assert stack is not None and "ValueError: a" in stack


class Busy(retryrmq.RetryAfter):
    def __init__(self) -> None:
        super().__init__("30s", "busy")
        self.partner = "acme"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, *(_pickled(n) for n in range(6))])
def test_signals_and_errors_can_be_copied_and_pickled(duplicate: Callable[[BaseException], BaseException]) -> None:
    errors = [
        retryrmq.RetryAfter("30s", "busy"),
        retryrmq.Defer("5s"),
        retryrmq.Park("why"),
        Busy(),
        _from_code("unreachable", "nobody answers", "refused"),
        retryrmq.BrokerTimeoutError("late"),
    ]
    for error in errors:
        again = duplicate(error)
        assert (type(again), again.args, vars(again)) == (type(error), error.args, vars(error))
        assert str(again) == str(error)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no groups")
def test_a_group_of_one_is_that_one() -> None:
    group: Any = vars(builtins)["ExceptionGroup"]
    assert classify(raised(group("tasks", [retryrmq.Park("why")])))[:2] == ("park", "why")
    assert classify(raised(group("tasks", [group("inner", [retryrmq.Defer("5s")])])))[0] == "defer"
    fatal = classify(raised(group("tasks", [KeyError("k")])), (LookupError,))
    assert (fatal[0], fatal[2]) == ("fatal", "KeyError")
    assert fatal[4] is not None and "tasks (1 sub-exception)" in fatal[4]
    several = classify(raised(group("tasks", [retryrmq.Park("why"), ValueError("a")])), (ValueError,))
    assert (several[0], several[2]) == ("retry", "ExceptionGroup")


def test_an_empty_text_is_the_name() -> None:
    assert classify(raised(ValueError()))[1] == "ValueError"


def test_signals_count_wherever_they_stand_among_the_causes() -> None:
    assert classify(raised(retryrmq.RetryAfter("30s", "busy")))[:3] == ("retry", "busy", "")
    assert classify(raised(retryrmq.RetryAfter("30s")))[5] == 30.0
    from_error = classify(raised(retryrmq.RetryAfter("30s"), ValueError("why")))
    assert from_error[:3] == ("retry", "why", "ValueError")
    wrapped = classify(raised(RuntimeError("outer"), retryrmq.Defer("5s")))
    assert (wrapped[0], wrapped[5]) == ("defer", 5.0)
    assert classify(raised(retryrmq.Park("no such customer")))[:2] == ("park", "no such customer")
    circle = ValueError("a")
    circle.__cause__ = RuntimeError("b")
    circle.__cause__.__cause__ = circle
    assert classify(circle)[0] == "retry"


def test_fatal_classes_and_their_subclasses() -> None:
    assert classify(raised(KeyError("k")), (LookupError,))[0] == "fatal"
    assert classify(raised(ValueError("k")), (LookupError,))[0] == "retry"


@pytest.mark.parametrize(
    ("duration", "text"),
    [("1.5ms", "1.5ms"), ("30.0005s", "30000.5ms"), ("400ms", "400ms"), ("2s", "2s"), ("90m", "90m")],
)
def test_a_duration_in_an_error_is_written_as_in_every_language(duration: str, text: str) -> None:
    defer = retryrmq.Defer(duration)
    assert str(defer) == f"deferred for {text}"
    assert timeout_end(defer.delay)[1] == f"the handler took longer than {text}"
