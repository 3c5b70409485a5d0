"""Measures the package beside its peers, in alternating rounds on one broker, and prints tables.

    tests/broker/with-brokers --versions 4.3 --one -- tests/bench/python/run [consume|retry|latency]…

Every measurement is a process of its own, on a queue of its own. Nothing is asserted: the machine is whatever it is, and
only ratios of one run mean anything. RETRYRMQ_BENCH_COUNT, RETRYRMQ_BENCH_RETRIED (messages that fail), RETRYRMQ_BENCH_ROUNDS and
RETRYRMQ_BENCH_KINDS ("classic quorum") make it shorter.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import case
import report
import retry
from queues import Broker, Kind
from report import Rounds

COUNT = int(os.environ.get("RETRYRMQ_BENCH_COUNT") or 100_000)
#: Of messages that fail.
RETRIED = int(os.environ.get("RETRYRMQ_BENCH_RETRIED") or COUNT)
ROUNDS = int(os.environ.get("RETRYRMQ_BENCH_ROUNDS") or 5)
#: Of the groups that take long.
FEWER_ROUNDS = min(ROUNDS, 3)
#: The limit: the core with a handler that does nothing; its program is named by `run`.
LIMIT = "core"
KINDS: tuple[Kind, ...] = tuple(
    kind for kind in get_args(Kind) if kind in (os.environ.get("RETRYRMQ_BENCH_KINDS") or "classic quorum").split()
)
PACE = "per_second"
#: For one measurement, in seconds. What takes longer is told and has no figures in that round.
PATIENCE = 600.0


def consume(broker: Broker) -> None:
    report.console.print(f"\n[bold]consume and acknowledge {COUNT} × 256 B, prefetch 200, {ROUNDS} rounds")
    names = [LIMIT, *case.GROUPS["consume"]]
    for kind in KINDS:
        rounds: Rounds = {name: [] for name in names}
        for name in alternating(names, ROUNDS):
            with work(broker, kind) as queue:
                broker.fill(queue, COUNT)
                rounds[name].append(
                    limit(broker.url, queue) if name == LIMIT else run("consume", name, broker, queue, COUNT)
                )
        report.keep("consume and acknowledge", kind, COUNT, rounds)
        report.pace(f"{kind} work queue", rounds, ["pika Blocking", "pika Select", "aio-pika", LIMIT])
        report.aims(
            rounds,
            [
                ("retryrmq sync", PACE, "pika Blocking", "≥ 2"),
                ("retryrmq sync", PACE, "pika Select", "≥ 1.4"),
                ("retryrmq sync", PACE, LIMIT, "≥ 0.85"),
                ("retryrmq async", PACE, "aio-pika", "≥ 4"),
                ("retryrmq async", PACE, LIMIT, "≥ 0.6"),
                ("retryrmq sync", "cpu_us", "pika Blocking", "≤ 0.4"),
                ("retryrmq async", "cpu_us", "aio-pika", "≤ 0.25"),
            ],
        )


def failing(broker: Broker) -> None:
    report.console.print(
        f"\n[bold]{RETRIED} × 256 B, each fails once and waits a second, prefetch 200, {FEWER_ROUNDS} rounds; the consumer is there first"
    )
    for kind in KINDS:
        # Dramatiq and Celery make their queues themselves: classic ones.
        names = [name for name in case.GROUPS["retry"] if kind == "classic" or name not in retry.FILLS]
        rounds: Rounds = {name: [] for name in names}
        for name in alternating(names, FEWER_ROUNDS):
            with work(broker, kind, waiting=True, own=name in retry.FILLS) as queue:
                measured = start("retry", name, broker, queue, RETRIED)
                broker.wait_for_consumer(queue)
                if name in retry.FILLS:
                    finish(start("fill", name, broker, queue, RETRIED), f"fill {name}")
                else:
                    broker.publish(queue, RETRIED)
                rounds[name].append(figures(measured, name))
        report.keep("fail once", kind, RETRIED, rounds)
        report.pace(f"{kind} work queue", rounds, [name for name in names if not name.startswith("retryrmq")])


def latency(broker: Broker) -> None:
    count = max(COUNT // 100, 20)
    report.console.print(f"\n[bold]one message at a time, 100 a second, {count} of them, {FEWER_ROUNDS} rounds")
    names = list(case.GROUPS["latency"])
    for kind in KINDS:
        rounds: Rounds = {name: [] for name in names}
        for name in alternating(names, FEWER_ROUNDS):
            with work(broker, kind) as queue:
                publisher = start("latency", "publisher", broker, queue, count)
                try:
                    rounds[name].append(run("latency", name, broker, queue, count))
                finally:
                    publisher.kill()
                    publisher.wait()
        report.lateness(f"{kind} work queue", rounds)
        report.aims(
            rounds,
            [
                ("retryrmq sync", "p99_ms", "pika Blocking", "≤ 1"),
                ("retryrmq async", "p99_ms", "pika Blocking", "≤ 1"),
            ],
        )


def alternating(names: list[str], rounds: int) -> Iterator[str]:
    """All of them in turn, in each round from another one on."""
    for number in range(rounds):
        at = number % len(names)
        yield from names[at:] + names[:at]


@contextmanager
def work(broker: Broker, kind: Kind, *, waiting: bool = False, own: bool = False) -> Iterator[str]:
    """A work queue for one measurement; ``own``: whoever is measured makes it."""
    queue = f"bench.{uuid.uuid4().hex[:12]}"
    try:
        if not own:
            broker.make(queue, kind, waiting=waiting)
        yield queue
    finally:
        broker.delete(queue)


def start(group: str, name: str, broker: Broker, queue: str, count: int) -> subprocess.Popen[str]:
    program = str(Path(__file__).with_name("case.py"))
    command = [sys.executable, program, group, name, broker.url, queue, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def run(group: str, name: str, broker: Broker, queue: str, count: int) -> dict[str, float]:
    return figures(start(group, name, broker, queue, count), name)


def limit(url: str, queue: str) -> dict[str, float]:
    command = [os.environ["RETRYRMQ_BENCH_CORE"], "case", "retryrmq", url, queue, str(COUNT)]
    return figures(subprocess.Popen(command, stdout=subprocess.PIPE, text=True), LIMIT)


def figures(process: subprocess.Popen[str], name: str) -> dict[str, float]:
    try:
        return json.loads(finish(process, name))
    except subprocess.TimeoutExpired:
        print(f"{name} did not come to its end within {PATIENCE:g} s", file=sys.stderr)
        return {}


def finish(process: subprocess.Popen[str], name: str) -> str:
    """What it printed; it must have ended well."""
    try:
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        raise SystemExit(f"the case `{name}` ended with status {process.returncode}")
    return output


GROUPS = {"consume": consume, "retry": failing, "latency": latency}


def main() -> None:
    wanted = sys.argv[1:] or list(GROUPS)
    if unknown := set(wanted) - GROUPS.keys():
        raise SystemExit(f"there is no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    broker = Broker(os.environ["RETRYRMQ_URL"])
    peers = ", ".join(f"{name} {version(name)}" for name in ("pika", "aio-pika", "kombu", "dramatiq", "celery"))
    report.console.print(f"RabbitMQ {broker.version()}, Python {platform.python_version()}; {peers}")
    for name in wanted:
        GROUPS[name](broker)


if __name__ == "__main__":
    main()
