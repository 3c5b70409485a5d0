"""Figures as tables: median, spread, and ratios round by round."""

from __future__ import annotations

import json
import math
import os
import sys
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

#: The figures of each round, by the name of the case.
Rounds = dict[str, list[dict[str, float]]]

console = Console(width=None if sys.stdout.isatty() else 170, highlight=False)


def values(rounds: Rounds, case: str, figure: str) -> list[float]:
    return [figures.get(figure, math.nan) for figures in rounds.get(case, [])]


def ratios(rounds: Rounds, case: str, peer: str, figure: str) -> list[float]:
    """Round by round, so that what the machine does in between hits both."""
    pairs = zip(values(rounds, case, figure), values(rounds, peer, figure), strict=True)
    return [ours / theirs for ours, theirs in pairs]


def spread(found: list[float], digits: int, scale: float = 1.0, unit: str = "") -> str:
    """The median, and in brackets the smallest and the largest."""
    found = [value * scale for value in found if not math.isnan(value)]
    if not found:
        return "–"
    return f"{median(found):.{digits}f}{unit} [{min(found):.{digits}f} – {max(found):.{digits}f}]"


def keep(group: str, kind: str, count: int, rounds: Rounds) -> None:
    """A line for tests/bench/table, in the file RETRYRMQ_BENCH_FIGURES if that is set."""
    if not (file := os.environ.get("RETRYRMQ_BENCH_FIGURES")):
        return
    line = {"language": "Python", "group": group, "kind": kind, "count": count, "rounds": rounds}
    with open(file, "a") as figures:
        figures.write(json.dumps(line) + "\n")


def pace(title: str, rounds: Rounds, peers: list[str]) -> None:
    """Messages a second, what they cost, and the pace as a ratio to each of the peers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("case", "messages/s", "client CPU µs each", "peak RSS MiB", *(f"pace × {peer}" for peer in peers)):
        table.add_column(column, justify="left" if column == "case" else "right")
    for case in rounds:
        table.add_row(
            case,
            spread(values(rounds, case, "per_second"), 0),
            spread(values(rounds, case, "cpu_us"), 1),
            spread(values(rounds, case, "rss_mib"), 0),
            *(spread(ratios(rounds, case, peer, "per_second"), 2) for peer in peers),
        )
    console.print(table)


#: What each of these groups is measured by: the heading, the figure and its digits.
Columns = list[tuple[str, str, int]]
LATENESS: Columns = [
    ("p50 ms", "p50_ms", 2),
    ("p99 ms", "p99_ms", 2),
    ("client CPU µs each", "cpu_us", 0),
    ("peak RSS MiB", "rss_mib", 0),
]
OUTAGE: Columns = [
    ("failed attempts", "attempts", 0),
    ("parked or dead", "parked", 0),
    ("seconds until all was done", "after_s", 1),
    ("client CPU µs each", "cpu_us", 0),
]
MEMORY: Columns = [
    ("held by the client", "held", 0),
    ("client KiB at a tenth", "begin_kib", 0),
    ("client bytes each", "bytes_each", 0),
]


def plain(title: str, rounds: Rounds, columns: Columns) -> None:
    """Figures without a ratio."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("case", *(heading for heading, _, _ in columns)):
        table.add_column(column, justify="left" if column == "case" else "right")
    for case in rounds:
        table.add_row(case, *(spread(values(rounds, case, figure), digits) for _, figure, digits in columns))
    console.print(table)


def aims(rounds: Rounds, wanted: list[tuple[str, str, str, str]]) -> None:
    """What is aimed at, (case, figure, peer, aim), beside what was found."""
    table = Table(title="aims", title_justify="left", box=box.SIMPLE_HEAD)
    for column in ("", "aim", "found"):
        table.add_column(column, justify="left" if column == "" else "right")
    names = {"per_second": "pace", "cpu_us": "CPU per message", "p99_ms": "p99"}
    for case, figure, peer, aim in wanted:
        found = spread(ratios(rounds, case, peer, figure), 2)
        table.add_row(f"{case}: {names[figure]} to that of {peer}", aim, found)
    console.print(table)
