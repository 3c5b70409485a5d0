"""One measured program, in a process of its own: ``case.py GROUP NAME URL QUEUE COUNT`` prints one line of JSON.

The group ``fill`` and the name ``publisher`` prepare and print nothing.
"""

from __future__ import annotations

import logging
import sys
import warnings

import consume
import latency
import memory
import retry
import storm

GROUPS = {
    "consume": consume.CASES,
    "retry": retry.CASES,
    "latency": latency.CASES,
    "storm": storm.CASES,
    "outage": storm.OUTAGE_CASES,
    "memory": memory.CASES,
}


def main() -> None:
    group, name, url, queue, count = sys.argv[1:]
    # What a failing message costs should be its way, not its log line.
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    if group == "fill":
        retry.FILLS[name](url, queue, int(count))
    elif name == "publisher":
        latency.publisher(url, queue, int(count))
    else:
        GROUPS[group][name](url, queue, int(count))


if __name__ == "__main__":
    main()
