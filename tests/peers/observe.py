"""Asks every peer every question and writes observed.json; with --check says which cells differ from it, and changes nothing.

observe.py [--check] [--peer NAME]… [--question NAME]…
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import questions
from peers import PEERS, Peer
from questions import QUESTIONS, Cells
from stage import HOME, Broker

OBSERVED = Path(__file__).with_name("observed.json")
#: How many stages at a time: they mostly wait.
AT_A_TIME = int(os.environ.get("PEERS_AT_A_TIME") or 3)


def versions() -> dict[str, str]:
    found = {name: version(name) for name in ("celery", "dramatiq", "pika", "retryrmq")}
    for name in ("amqplib", "rascal", "@nestjs/microservices"):
        found[name] = json.loads((HOME / "node/node_modules" / name / "package.json").read_text())["version"]
    node = (
        subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
        .stdout.strip()
        .removeprefix("v")
    )
    return {**found, "Python": platform.python_version(), "Node": node}


def asked(brokers: list[Broker], peers: list[Peer], names: list[str]) -> tuple[dict[str, Cells], list[str]]:
    """The cells by peer, and what could not be answered."""
    newest, others = brokers[0], brokers[1:]
    found: dict[str, Cells] = {peer.folder: {} for peer in peers}
    failures: list[str] = []

    def ask(peer: Peer, name: str, broker: Broker) -> None:
        began = datetime.datetime.now()
        try:
            if broker is newest:
                cells = QUESTIONS[name](broker, peer)
            else:
                there = QUESTIONS["gives_up"](broker, peer)
                became = [there["attempts"], there["afterwards"]]
                cells = {f"on {broker.series}": "; ".join(word for word in became if word != questions.NONE)}
        except Exception:
            failures.append(f"{peer.folder}, {name}, {broker.version}: {traceback.format_exc()}")
            print(failures[-1], file=sys.stderr, flush=True)
            return
        found[peer.folder].update(cells)
        print(f"{peer.folder}: {cells} ({(datetime.datetime.now() - began).seconds} s)", flush=True)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for name in names:
            if name in QUESTIONS:
                list(pool.map(lambda peer, name=name: ask(peer, name, newest), peers))
            elif name == "versions":
                for broker in others:
                    list(pool.map(lambda peer, broker=broker: ask(peer, "versions", broker), peers))
    if "broker_restarted" in names:
        try:
            for folder, cells in questions.broker_restarted(newest, peers).items():
                found[folder].update(cells)
                print(f"{folder}: {cells}", flush=True)
        except Exception:
            failures.append(f"broker_restarted: {traceback.format_exc()}")
            print(failures[-1], file=sys.stderr, flush=True)
    return found, failures


def main() -> None:
    every = [*QUESTIONS, "versions", "broker_restarted"]
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--peer", action="append", choices=list(PEERS))
    arguments.add_argument("--question", action="append", choices=every)
    said = arguments.parse_args()
    lines = [line for line in os.environ["RETRYRMQ_TEST_BROKERS"].splitlines() if line]
    brokers = sorted(
        map(Broker, lines), key=lambda broker: [int(part) for part in broker.version.split(".")], reverse=True
    )
    peers = [PEERS[name] for name in said.peer or PEERS]
    found, failures = asked(brokers, peers, said.question or every)

    known = json.loads(OBSERVED.read_text()) if OBSERVED.exists() else {"peers": {}}
    differs = [
        f"{folder}: {cell}: {known['peers'].get(folder, {}).get(cell)} in observed.json, {value} now"
        for folder, cells in found.items()
        for cell, value in cells.items()
        if known["peers"].get(folder, {}).get(cell) != value
    ]
    if said.check:
        print("\n".join(differs) or "every cell is as it was")
        sys.exit(1 if differs or failures else 0)
    for folder, cells in found.items():
        known["peers"].setdefault(folder, {}).update(cells)
    known["peers"] = {
        folder: dict(sorted(known["peers"][folder].items())) for folder in PEERS if folder in known["peers"]
    }
    whole = not said.peer and not said.question and not failures
    if whole or "date" not in known:
        known["date"] = datetime.date.today().isoformat()
        known["brokers"] = [broker.version for broker in brokers]
        known["versions"] = versions()
    OBSERVED.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
