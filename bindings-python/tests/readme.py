"""Runs the first example of the README as it is printed: `python readme.py README.md`, with the broker at RETRYRMQ_URL."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

#: Long enough for the busiest machine, in seconds; a run that passes never waits for it.
PATIENCE = 180.0


def main() -> int:
    readme = Path(sys.argv[1]).read_text(encoding="utf-8")

    def block(language: str, containing: str = "") -> str:
        blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
        return next(block for block in blocks if containing in block)

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


if __name__ == "__main__":
    sys.exit(main())
