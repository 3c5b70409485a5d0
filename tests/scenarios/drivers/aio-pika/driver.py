"""The driver for ``retryrmq.aio_pika`` and ``retryrmq.faststream``: ``driver.py aio-pika`` or ``driver.py faststream``."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import sys
from typing import Any

import retryrmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "python"))
from driver import Hopeless, Script, Tell, say

CAN = [
    "error",
    "error_type",
    "fatal",
    "retry_after",
    "park",
    "defer",
    "panic",
    "exit",
    "rules",
    "declare",
    "queue_type",
    "crash_limit",
    "defer_limit",
    "no_park",
    "wrapped_park",
    "whole_headers",
    "events",
    "refused",
]

#: Scenarios that do not apply, and why.
NO_WIDTHS = "aio-pika does not tell the widths of integers and fractions apart, so a copy has the widest"
NO_RETRIES = "without dlx there is nothing to retry, and the integration is left out"
UNREADABLE = "the connection is that of aio-pika, which cannot read such a message, and the contract has no connection to look for it"
CANNOT = {
    "strategy-*": "the contract for other clients knows the strategy retry-queues",
    "dlx-off*": NO_RETRIES,
    "*-dlx-off": NO_RETRIES,
    "unreadable*": UNREADABLE,
    "hostile": UNREADABLE,
    "forged-counts": "aio-pika cannot read a time after the year 9999, and loses its connection",
    "unicode-names": "aio-pika refuses a queue whose name is not ASCII",
    "header-types": NO_WIDTHS,
    "older-counts": NO_WIDTHS,
    "rules-header": NO_WIDTHS,
}
OF_FASTSTREAM = {
    "missing-queue": "FastStream declares the work queue itself",
    "declare-off-missing": "FastStream looks for the queue itself, and raises its own error",
}


def consume(order: dict[str, Any], how: str) -> None:
    options = dict(order["consume"])
    # All messages that are unacknowledged run at the same time.
    prefetch = min(options.pop("prefetch", 64), options.pop("concurrency", 64))
    fatal = (Hopeless,) if options.pop("fatal", True) else ()
    script = Script(order["handler"], order["runs"])
    logging.getLogger("retryrmq").setLevel(logging.DEBUG)
    logging.getLogger("retryrmq").addHandler(Tell())

    def told(event: retryrmq.Event) -> None:
        say("event", kind=event.name, **vars(event))

    async def play(message: retryrmq.Message) -> None:
        name, run, step = script.begin(message)
        await asyncio.sleep(step.get("sleep_ms", 0) / 1000)
        script.end(name, run, step)

    # FastStream takes longer to import than most scenarios to run.
    over = importlib.import_module("over_faststream" if how == "faststream" else "over_aio_pika")
    try:
        asyncio.run(over.consume(order, {"fatal": fatal, "on_event": told, **options}, prefetch, play))
    except retryrmq.RetryRmqError as error:
        say("refused", code=error.code, message=str(error))
    else:
        say("done")


def main() -> None:
    how = sys.argv[1]
    order = json.load(sys.stdin)
    if order["task"] == "describe":
        cannot = CANNOT | (OF_FASTSTREAM if how == "faststream" else {})
        say("driver", name=how, can=CAN, cannot=cannot)
    elif order["task"] == "consume":
        consume(order, how)
    else:
        sys.exit(f"unknown task {order['task']!r}")


if __name__ == "__main__":
    main()
