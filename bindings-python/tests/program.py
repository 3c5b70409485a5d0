"""Programs of Python, each in a process of its own, and what they leave in a queue."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import retryrmq
from conftest import PATIENCE, Broker

PRELUDE = """
import asyncio, json, os, signal, sys, threading, time
import retryrmq
url, queue = sys.argv[1:3]
# A shell has what it runs in the background ignore Ctrl-C, and so would this.
signal.signal(signal.SIGINT, signal.default_int_handler)

def say(**line):
    # In one call: a signal handler may say something in the middle of another line, which buffered output does not bear.
    os.write(1, (json.dumps(line) + "\\n").encode())
"""


class Program:
    """A Python program of ours, line by line."""

    def __init__(
        self,
        source: str,
        broker: Broker,
        queue: str,
        url: str | None = None,
        stdin: int | None = None,
        first: str = "",
    ) -> None:
        """``first`` runs before everything that ``source`` finds imported."""
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-X",
                "faulthandler",
                "-c",
                first + PRELUDE + textwrap.dedent(source),
                url or broker.url,
                queue,
            ],
            stdin=stdin,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> Any:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, f"the program ended with {self.process.wait(PATIENCE)} before it said anything more"
        return json.loads(text)

    def lines(self) -> list[Any]:
        assert self.process.stdout is not None
        return [json.loads(text) for text in self.process.stdout]

    def end(self) -> int:
        return self.process.wait(PATIENCE)


def left_in(broker: Broker, queue: str) -> list[tuple[str, bool]]:
    """What is in the queue, and whether it was delivered before; empties it."""
    with retryrmq.connect_blocking(broker.url) as client, client.consume(queue, dlx=True) as consumer:
        client.publish(queue, "the last one")
        found: list[tuple[str, bool]] = []
        for msg in consumer:
            msg.ack()
            if msg.text() == "the last one":
                return found
            found.append((msg.text(), msg.redelivered))
    raise AssertionError


def wait_briefly(program: Program) -> bool:
    try:
        program.process.wait(0.5)
    except subprocess.TimeoutExpired:
        return False
    return True


def make_queue(broker: Broker, queue: str) -> None:
    with retryrmq.connect_blocking(broker.url) as client, client.consume(queue, dlx=True):
        pass
