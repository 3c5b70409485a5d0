"""What every measured program shares: the work, the clock, and one line of JSON at the end."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import NoReturn

BODY = b"x" * 256
PREFETCH = 200


def cpu() -> float:
    """Seconds of CPU that all threads of this process have used, in user and system mode."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_kib() -> int:
    """The most memory that was resident. From proc(5): what getrusage says begins with the peak of the parent."""
    return _kib("VmHWM", "self")


def resident_kib(process: int) -> int:
    """The memory of a process that is resident now."""
    return _kib("VmRSS", str(process))


def _kib(figure: str, process: str) -> int:
    with open(f"/proc/{process}/status") as status:
        return int(next(line for line in status if line.startswith(f"{figure}:")).split()[1])


class Meter:
    """Counts messages; at the last one it reports and ends the process, whatever else runs in it."""

    def __init__(self, count: int) -> None:
        self.count = self.left = count
        self.began, self.cpu = time.perf_counter(), cpu()
        self.has_arrived = False

    def arrived(self) -> None:
        """A delivery is here. The clock starts with the first: what is measured may have waited for its messages."""
        if not self.has_arrived:
            self.has_arrived = True
            self.began, self.cpu = time.perf_counter(), cpu()

    def one(self) -> None:
        """A message is done. Called by one thread only."""
        self.left -= 1
        if self.left == 0:
            self.report()

    def report(self) -> NoReturn:
        took, used = time.perf_counter() - self.began, cpu() - self.cpu
        report(per_second=self.count / took, cpu_us=used / self.count * 1e6, rss_mib=peak_kib() / 1024)


class Lateness:
    """How long messages are under way. Their body begins with the monotonic clock at their publication, in ns."""

    #: The first ones, with which connections and caches warm up, are not counted.
    WARM_UP = 100

    def __init__(self, count: int) -> None:
        self.count = count
        self.seen: list[int] = []
        self.meter = Meter(count)

    def one(self, body: bytes) -> None:
        self.seen.append(time.monotonic_ns() - int(body.split(b" ", 1)[0]))
        if len(self.seen) == self.count:
            used = cpu() - self.meter.cpu
            late = sorted(self.seen[min(self.WARM_UP, self.count // 2) :])
            at = {name: late[int((len(late) - 1) * share)] / 1e6 for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99))}
            report(**at, cpu_us=used / self.count * 1e6, rss_mib=peak_kib() / 1024)


def report(**figures: float) -> NoReturn:
    print(json.dumps(figures), flush=True)
    sys.stdout.flush()
    os._exit(0)


#: The measured programs by group and name; each takes the broker's address, the queue and how many messages.
Case = Callable[[str, str, int], None]
