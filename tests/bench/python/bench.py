"""Measures the package beside its peers, in alternating rounds on one broker, and prints tables.

    tests/broker/with-brokers --versions 4.3 --one -- tests/bench/python/run [consume|retry|storm|outage|latency|memory]…

Every measurement is a process of its own, on a queue of its own. Nothing is asserted: the machine is whatever it is, and
only ratios of one run mean anything. RETRYRMQ_BENCH_COUNT, RETRYRMQ_BENCH_RETRIED (messages that fail),
RETRYRMQ_BENCH_OUTSTANDING (how many of these a client may hold: 200), RETRYRMQ_BENCH_STORM (messages of a storm), RETRYRMQ_BENCH_OUTAGE (its seconds), RETRYRMQ_BENCH_WAITING (messages that wait), RETRYRMQ_BENCH_ROUNDS and
RETRYRMQ_BENCH_KINDS ("classic quorum") make it shorter. Without the name of a group, it measures consume, retry and latency.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import case
import report
import retry
import storm
from latency import PER_SECOND
from load import HELD, Outage
from measure import resident_kib
from memory import HOUR
from queues import Broker, Kind
from report import Rounds

COUNT = int(os.environ.get("RETRYRMQ_BENCH_COUNT") or 100_000)
#: Of messages that fail.
RETRIED = int(os.environ.get("RETRYRMQ_BENCH_RETRIED") or COUNT)
#: Of a storm.
STORM = int(os.environ.get("RETRYRMQ_BENCH_STORM") or 100_000)
#: The seconds of an outage.
AWAY = int(os.environ.get("RETRYRMQ_BENCH_OUTAGE") or 120)
#: Of messages that wait for an hour.
WAITING = int(os.environ.get("RETRYRMQ_BENCH_WAITING") or 10_000)
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
PATIENCE = 1800.0


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
        f"\n[bold]{RETRIED} × 256 B, each fails once and waits a second, {HELD} outstanding, {FEWER_ROUNDS} rounds; the consumer is there first"
    )
    for kind in KINDS:
        names = possible(broker, kind, "retry")
        rounds: Rounds = {name: [] for name in names}
        for name in alternating(names, FEWER_ROUNDS):
            with work(broker, kind, retry="fixed(1s)", own=name in retry.FILLS) as queue:
                measured = start("retry", name, broker, queue, RETRIED)
                broker.wait_for_consumer(queue)
                publish(name, broker, queue, RETRIED)
                rounds[name].append(figures(measured, name))
        report.keep("fail once", f"{kind}, {HELD} outstanding", RETRIED, rounds)
        report.pace(f"{kind} work queue", rounds, [name for name in names if not name.startswith("retryrmq")])


def storms(broker: Broker) -> None:
    report.console.print(
        f"\n[bold]{STORM} × 256 B, each fails {storm.FAILURES} times and waits a second each time, {storm.OUTSTANDING} outstanding, {FEWER_ROUNDS} rounds; the consumer is there first"
    )
    for kind in KINDS:
        names = possible(broker, kind, "storm")
        rounds: Rounds = {titled(name): [] for name in names}
        for name in alternating(names, FEWER_ROUNDS):
            count = stormed(name)
            with work(broker, kind, retry="fixed(1s)", native=name in storm.NATIVE, own=name in retry.FILLS) as queue:
                measured = start("storm", name, broker, queue, count)
                broker.wait_for_consumer(queue)
                publish(name, broker, queue, count)
                rounds[titled(name)].append(figures(measured, name))
        report.keep("retry storm", kind, STORM, rounds)
        report.pace(f"{kind} work queue", rounds, [titled(name) for name in names if not name.startswith("retryrmq")])


def stormed(name: str) -> int:
    """The messages of a storm."""
    return max(STORM // storm.FEWER.get(name, 1), 1)


def titled(name: str) -> str:
    """Says how many messages it gets, if fewer than others."""
    return f"{name}, {stormed(name)} messages" if name in storm.FEWER else name


def outage(broker: Broker) -> None:
    count = AWAY * PER_SECOND
    report.console.print(
        f"\n[bold]{count} messages, {PER_SECOND} a second for {AWAY} s, in which every attempt fails; five retries after 1 to 16 s; quorum, one round"
    )
    rounds: Rounds = {}
    for name in case.GROUPS["outage"]:
        with work(broker, "quorum", retry=Outage.retry) as queue:
            measured = start("outage", name, broker, queue, count)
            broker.wait_for_consumer(queue)
            finish(start("latency", "publisher", broker, queue, count), "publisher")
            rounds[name] = [figures(measured, name)]
    report.keep("outage", "quorum", count, rounds)
    report.plain("outage", rounds, report.OUTAGE)


def memory(broker: Broker) -> None:
    report.console.print(
        f"\n[bold]{WAITING} × 256 B, each fails once and waits for an hour, {FEWER_ROUNDS} rounds; classic"
    )
    names = list(case.GROUPS["memory"])
    rounds: Rounds = {name: [] for name in names}
    # The first ones, with which buffers and caches fill, are not counted.
    first = max(WAITING // 10, 1)
    for name in alternating(names, FEWER_ROUNDS):
        with work(broker, "classic", retry=f"fixed({HOUR}s)", own=name in retry.FILLS) as queue:
            measured = start("memory", name, broker, queue, WAITING)
            try:
                broker.wait_for_consumer(queue)
                publish(name, broker, queue, first)
                before = settled(broker, queue, measured)
                publish(name, broker, queue, WAITING - first)
                grown = settled(broker, queue, measured) - before
                held = WAITING - sum(broker.ready(queue).values())
            finally:
                measured.kill()
                measured.wait()
            rounds[name].append({"held": held, "begin_kib": before, "bytes_each": grown * 1024 / (WAITING - first)})
    report.keep("memory", "classic", WAITING, rounds)
    report.plain("memory", rounds, report.MEMORY)


def settled(broker: Broker, queue: str, process: subprocess.Popen[str]) -> int:
    """The process' resident memory in KiB, once it has tried all messages and grows no more."""
    steady, last, deadline = 0, 0, time.monotonic() + PATIENCE
    while steady < 6:
        if time.monotonic() > deadline:
            raise SystemExit(f"not all messages of {queue} were tried within {PATIENCE:g} s")
        time.sleep(0.5)
        now = resident_kib(process.pid)
        steady = steady + 1 if abs(now - last) < last / 200 and not broker.ready(queue).get("") else 0
        last = now
    return last


def publish(name: str, broker: Broker, queue: str, count: int) -> None:
    """Publishes what a measured program takes: Dramatiq and Celery have messages of their own."""
    if name in retry.FILLS:
        finish(start("fill", name, broker, queue, count), f"fill {name}")
    else:
        broker.publish(queue, count)


def possible(broker: Broker, kind: Kind, group: str) -> list[str]:
    """The cases for this type of queue. Dramatiq and Celery make theirs themselves: classic ones."""
    new = tuple(int(part) for part in broker.version().split(".")[:2]) >= (4, 3)
    names = case.GROUPS[group]
    if kind == "quorum":
        return [name for name in names if name not in retry.FILLS and (new or name not in storm.NATIVE)]
    return [name for name in names if name not in storm.NATIVE]


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
        report.plain(f"{kind} work queue", rounds, report.LATENESS)
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
def work(
    broker: Broker, kind: Kind, *, retry: str | None = None, native: bool = False, own: bool = False
) -> Iterator[str]:
    """A work queue for one measurement; ``own``: whoever is measured makes it."""
    queue = f"bench.{uuid.uuid4().hex[:12]}"
    try:
        if not own:
            broker.make(queue, kind, retry=retry, native=native)
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


GROUPS = {
    "consume": consume,
    "retry": failing,
    "latency": latency,
    "storm": storms,
    "outage": outage,
    "memory": memory,
}
#: Measured unless others are named.
USUAL = ["consume", "retry", "latency"]


def main() -> None:
    wanted = sys.argv[1:] or USUAL
    if unknown := set(wanted) - GROUPS.keys():
        raise SystemExit(f"there is no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    broker = Broker(os.environ["RETRYRMQ_URL"])
    peers = ", ".join(f"{name} {version(name)}" for name in ("pika", "aio-pika", "kombu", "dramatiq", "celery"))
    report.console.print(f"RabbitMQ {broker.version()}, Python {platform.python_version()}; {peers}")
    for name in wanted:
        GROUPS[name](broker)


if __name__ == "__main__":
    main()
