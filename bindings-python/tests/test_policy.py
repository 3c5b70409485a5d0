"""Policies, rules, durations: refused at the call, with the option's name."""

from __future__ import annotations

from datetime import timedelta

import pytest
import retryrmq


def test_the_text_form_is_that_of_every_language() -> None:
    policy = retryrmq.exponential("1s", factor=4, max="5m", retries=5, jitter=0.2)
    assert policy == retryrmq.Policy("exponential(1s, factor=4, max=5m, retries=5, jitter=0.2)")
    assert retryrmq.fixed(timedelta(seconds=5), retries=3) == retryrmq.Policy("fixed(5s, retries=3)")
    assert retryrmq.linear("1s", step="2s", max="1m", max_age="1h", age_from="published").retries == 5
    assert retryrmq.list("1s", "10s", "1m").delays == (
        timedelta(seconds=1),
        timedelta(seconds=10),
        timedelta(minutes=1),
    )
    assert str(retryrmq.list("1s", "10s")).startswith("list(1s, 10s")


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda: retryrmq.fixed(5), TypeError, "`delay` must be a timedelta or a string such as '5s', not int"),
        (lambda: retryrmq.fixed("5"), ValueError, "`delay`: cannot read the duration"),
        (lambda: retryrmq.fixed("-1s"), ValueError, "negative"),
        (lambda: retryrmq.fixed(timedelta(seconds=-1)), ValueError, "`delay` is negative"),
        (lambda: retryrmq.exponential("1s", factor=0.5), ValueError, "factor"),
        (lambda: retryrmq.exponential("1s", factor="4"), TypeError, "`factor` must be a number"),
        (lambda: retryrmq.exponential("1s", retries=True), TypeError, "`retries` must be an int"),
        (lambda: retryrmq.exponential("1s", retries=-1), ValueError, "retries"),
        (lambda: retryrmq.exponential("1s", jitter=2), ValueError, "jitter"),
        (lambda: retryrmq.exponential("1s", max="5 fortnights"), ValueError, "`max`"),
        (lambda: retryrmq.list(), ValueError, "list"),
        (lambda: retryrmq.Policy("whenever"), ValueError, "whenever"),
        (lambda: retryrmq.Policy(5), TypeError, "not int"),
        (lambda: retryrmq.fixed("1s", age_from="birth"), ValueError, "`age_from`"),
        (lambda: retryrmq.Rule("fixed(1s)"), ValueError, "condition"),
        (lambda: retryrmq.Rule("fixed(1s)", error=5), TypeError, "`error`"),
        (lambda: retryrmq.Rule("fixed(1s)", headers=["a"]), TypeError, "`headers`"),
        (lambda: retryrmq.Rule("never", routing_key="a"), ValueError, "never"),
    ],
)
def test_what_cannot_work_is_refused(make: object, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind) as refused:
        make()  # type: ignore[operator]
    assert isinstance(refused.value, retryrmq.RetryRmqError)
    assert refused.value.code in ("invalid_option", "invalid_policy")
    assert says in str(refused.value)


def test_what_is_easily_got_wrong_is_told() -> None:
    with pytest.raises(TypeError, match="`retries` must be an int"):
        retryrmq.fixed("1s", retries=2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="one by one"):
        retryrmq.list(["1s", "2s"])  # type: ignore[arg-type]
