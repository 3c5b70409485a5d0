"""Which attempts fail, and when all is done: every loop asks this, whoever wrote it.

Either each message fails so often, or all attempts fail while a dependency is away.
"""

from __future__ import annotations

import os
import time
from typing import Protocol

from latency import PER_SECOND
from measure import PREFETCH, Meter, cpu, report


class Load(Protocol):
    #: How many messages a client may hold.
    outstanding: int
    #: The policy, as retryrmq takes it.
    retry: str

    def fails(self, failed: int) -> bool:
        """Whether an attempt at a message fails that has failed so often before."""

    def place(self, queue: str, failed: int) -> str:
        """The queue to which a loop by hand sends a message that fails, and has failed so often before."""

    def done(self) -> None:
        """A message has succeeded."""


#: Messages that a client may hold while each fails once.
HELD = int(os.environ.get("RETRYRMQ_BENCH_OUTSTANDING") or PREFETCH)


class NotYetError(Exception):
    """The failure of a handler."""


def attempt(load: Load, failed: int) -> None:
    """What every handler does: like any other it fails by raising, and an exception is work, whoever catches it."""
    if load.fails(failed):
        raise NotYetError("not yet")
    load.done()


class Failing:
    """Each message fails ``failures`` times, waits ``delay`` seconds each time, and succeeds."""

    def __init__(self, count: int, *, failures: int = 1, delay: int = 1, outstanding: int = HELD) -> None:
        self.failures, self.delay, self.outstanding = failures, delay, outstanding
        self.retry = f"fixed({delay}s)"
        self.meter = Meter(count)

    def fails(self, failed: int) -> bool:
        self.meter.arrived()
        return failed < self.failures

    def place(self, queue: str, failed: int) -> str:
        return f"{queue}.retry.{self.delay * 1000}"

    def done(self) -> None:
        self.meter.one()


class Outage:
    """A dependency is away from the first message on, until all have come; five retries after 1, 2, 4, 8 and 16 seconds."""

    RETRIES = 5
    retry = f"exponential(1s, factor=2, retries={RETRIES})"
    outstanding = PREFETCH

    def __init__(self, count: int) -> None:
        self.count = count
        self.attempts = self.handled = self.parked = 0
        self.back: float | None = None
        self.cpu = 0.0

    def fails(self, failed: int) -> bool:
        now = time.monotonic()
        if self.back is None:
            self.back, self.cpu = now + self.count / PER_SECOND, cpu()
        if now >= self.back:
            return False
        self.attempts += 1
        if failed == self.RETRIES:
            self.parked += 1
        return True

    def place(self, queue: str, failed: int) -> str:
        return f"{queue}.retry.{1000 * 2**failed}" if failed < self.RETRIES else f"{queue}.parked"

    def done(self) -> None:
        """The last message came as the dependency returned, so that it cannot be given up: the end is always here."""
        self.handled += 1
        if self.back is None or self.handled + self.parked < self.count:
            return
        report(
            attempts=self.attempts,
            parked=self.parked,
            after_s=time.monotonic() - self.back,
            cpu_us=(cpu() - self.cpu) / self.count * 1e6,
        )
