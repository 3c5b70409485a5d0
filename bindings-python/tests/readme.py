"""Runs examples of the README and of its pages as they are printed: `python readme.py README.md PAGE.md…`, with the broker at RETRYRMQ_URL.

The first one of the README as a program; those about connections and queues as an app. All others are compiled.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

import retryrmq

#: Long enough for the busiest machine, in seconds; a run that passes never waits for it.
PATIENCE = 180.0


def main() -> int:
    pages = [Path(page).read_text(encoding="utf-8") for page in sys.argv[1:]]

    def blocks(language: str) -> list[str]:
        fenced = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
        return [text for page in pages for text in fenced.findall(page)]

    def block(language: str, containing: str = "") -> str:
        return next(block for block in blocks(language) if containing in block)

    assert len(blocks("python")) > 15, "the pages have examples"
    for source in blocks("python"):
        compile(source, "a page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    asyncio.run(connects(block("python", "credentials="), block("python", "work_queue=")))
    print("README's connections and queues: ok")
    expected = block("text").splitlines()
    publish = shlex.split(block("console", "publish(").removeprefix("$ ").strip())
    publish[0] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "consumer.py").write_text(block("python"), encoding="utf-8")
        consumer = subprocess.Popen([sys.executable, "consumer.py"], cwd=folder, stdout=subprocess.PIPE, text=True)
        assert consumer.stdout is not None
        watch = threading.Timer(PATIENCE, consumer.kill)
        watch.start()
        try:
            deadline = time.monotonic() + PATIENCE
            while (said := subprocess.run(publish, capture_output=True, text=True)).returncode:
                # The consumer has not made the queue yet.
                if "UnroutableError" not in said.stderr or time.monotonic() > deadline:
                    raise SystemExit(f"the README's publisher failed:\n{said.stderr}")
            printed = [consumer.stdout.readline().rstrip("\n") for _ in expected]
            consumer.send_signal(signal.SIGINT)
            printed += consumer.stdout.read().splitlines()
            status = consumer.wait()
        finally:
            watch.cancel()
            consumer.kill()
            consumer.wait()
    if (status, printed) != (0, expected):
        raise SystemExit(f"the README's first example ended with {status} and printed {printed}, not {expected}")
    print("README's first example: ok")
    return 0


class Vault:
    """Stands in for whatever issues passwords to the reader."""

    def __init__(self, user: str, password: str) -> None:
        self._user, self._password = user, password
        self.asked = 0

    async def read(self, path: str) -> dict[str, str]:
        self.asked += 1
        return {"username": self._user, "password": self._password}


async def connects(connection: str, queue: str) -> None:
    """The app of two examples, at our broker, whose login only the function knows."""
    url = os.environ["RETRYRMQ_URL"]
    broker = urllib.parse.urlsplit(url)
    vault = Vault(broker.username or "guest", broker.password or "guest")
    hosts = "amqp://one,two,three/shop"
    assert hosts in connection
    names: dict[str, Any] = {"retryrmq": retryrmq, "vault": vault}
    exec(connection.replace(hosts, url.replace(f"{broker.username}:{broker.password}@", "nobody:nothing@")), names)
    exec(queue, names)
    async with names["app"] as app:
        assert app.healthy() and vault.asked >= 2


if __name__ == "__main__":
    sys.exit(main())
