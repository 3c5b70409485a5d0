"""Writes observed.json into docs/comparison.md, between its marks; with --check it only says whether that page has these tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from peers import PEERS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/comparison.md"
BEGIN, END = (
    "<!-- tables: written by tests/peers/table.py from tests/peers/observed.json -->\n",
    "<!-- end of the tables -->\n",
)

#: What the page says instead of the words of observed.json.
SAID = {"comes again": "redelivered"}

#: Title, and its columns: what the reader sees, and the cell.
TABLES = {
    "A message fails once, with a delay of two seconds": (
        ("comes back", "comes back"),
        ("to the … of the queue", "place"),
        ("deliveries", "deliveries"),
        ("another queue on the same exchange gets it", "seen by others"),
        ("messages behind ten that fail", "neighbours"),
    ),
    "While a retry waits": (
        ("where it waits", "waits in"),
        ("SIGKILL of the worker: it comes", "worker killed"),
        ("SIGKILL while it is handled instead", "killed at work"),
        ("the broker restarts", "broker restarted"),
        ("the worker connects again", "connects again"),
    ),
    "It always fails, with three retries": (
        ("attempts", "attempts"),
        ("afterwards", "afterwards"),
        ("the reason is written down", "record of the error"),
        ("the count, after SIGKILL between two retries", "count after a kill"),
        ("RabbitMQ 4.0: attempts, afterwards", "on 4.0"),
        ("RabbitMQ 3.10: attempts, afterwards", "on 3.10"),
    ),
    "Trouble with queues": (
        ("its waiting queue was deleted", "place deleted"),
        ("… is full, with `reject-publish`", "place full"),
        ("a classic work queue of somebody else's", "existing classic queue"),
        ("a quorum work queue of somebody else's", "existing quorum queue"),
    ),
}


def tables(observed: dict) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in observed["versions"].items())
    text = f"\nObserved on {observed['date']}, on RabbitMQ {', '.join(observed['brokers'])}; {versions}.\n"
    for title, columns in TABLES.items():
        text += f"\n### {title}\n\n| | {' | '.join(head for head, _ in columns)} |\n|---|{'---|' * len(columns)}\n"
        for folder, cells in observed["peers"].items():
            found = [cells.get(cell, "?") for _, cell in columns]
            text += f"| {PEERS[folder].title} | {' | '.join(SAID.get(cell, cell) for cell in found)} |\n"
    return text + "\n"


def main() -> None:
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    written = before + BEGIN + tables(json.loads((HERE / "observed.json").read_text())) + END + after
    if "?" in written.split(BEGIN)[1].split(END)[0]:
        sys.exit("tests/peers/observed.json lacks cells; run: make peers")
    if "--check" not in sys.argv:
        PAGE.write_text(written)
    elif written != page:
        sys.exit("docs/comparison.md has other tables than tests/peers/observed.json; run: tests/peers/table.py")


if __name__ == "__main__":
    main()
