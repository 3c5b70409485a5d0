"""Each message fails once and waits for an hour: what a client keeps of it meanwhile."""

from __future__ import annotations

from functools import partial

from load import Failing
from retry import LOOPS, asked

HOUR = 3_600


def _all_at_once(count: int) -> Failing:
    """Celery holds what waits, and raises its prefetch for it; RabbitMQ 4.3 leaves a prefetch as it is, so it is high enough at once."""
    return Failing(count, delay=HOUR, outstanding=count)


CASES = {
    **asked(
        {name: LOOPS[name] for name in ("Dramatiq", "retryrmq sync", "retryrmq async")}, partial(Failing, delay=HOUR)
    ),
    **asked({"Celery": LOOPS["Celery"]}, _all_at_once),
}
