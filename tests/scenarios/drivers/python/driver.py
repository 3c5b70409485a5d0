"""Plays scenarios with the Python package: the driver contract of ``tests/scenarios/README.md``.

``driver.py async`` has a coroutine for a handler, ``driver.py sync`` a function.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import retryrmq

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
    "handler_timeout",
    "pause",
    "declare",
    "queue_type",
    "prefetch_bytes",
    "crash_limit",
    "defer_limit",
    "no_park",
    "wrapped_park",
    "log",
    "mended",
    "replay",
    "records",
    "whole_headers",
    "publish",
    "events",
    "refused",
]

_printing = threading.Lock()
#: Nothing comes after this line, whoever still logs.
_LAST = "done"
_said: list[str] = []


def say(line: str, **keys: Any) -> None:
    with _printing:
        if _said:
            return
        if line == _LAST:
            _said.append(line)
        print(json.dumps({"line": line, **keys}, default=plain), flush=True)


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"$timestamp": int(value.timestamp())}
    if isinstance(value, Decimal | timedelta):
        return str(value)
    raise TypeError(f"no JSON for {value!r}")


def seconds(value: Any) -> Any:
    return int(value.timestamp()) if isinstance(value, datetime) else value


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Hopeless(Exception):
    """What the consumer's options call fatal."""


class Panic(BaseException):
    """What no handler should raise."""


def identity(msg: retryrmq.Message) -> str:
    """Which message of the scenario it is."""
    return str(msg.headers.get("scenario-id", msg.message_id or ""))


class Script:
    """Which step of which message comes next."""

    def __init__(self, steps: dict[str, list[dict[str, Any]]], runs: dict[str, int]) -> None:
        self._steps = steps
        self._runs = Counter(runs)
        self._lock = threading.Lock()

    def begin(self, msg: retryrmq.Message) -> tuple[str, int, dict[str, Any]]:
        headers, name = msg.headers, identity(msg)
        with self._lock:
            self._runs[name] += 1
            run = self._runs[name]
        steps = self._steps.get(name) or [{"do": "ok"}]
        first_failed_at = msg.first_failed_at
        say(
            "attempt",
            id=name,
            run=run,
            at_ms=now_ms(),
            attempt=msg.attempt,
            retries=msg.retries,
            queue=msg.queue,
            exchange=msg.exchange,
            routing_key=msg.routing_key,
            message_id=msg.message_id,
            redelivered=msg.redelivered,
            last_error=msg.last_error,
            mended=msg.mended,
            first_failed_at_ms=None if first_failed_at is None else int(first_failed_at.timestamp() * 1000),
            headers=headers,
            properties={name: seconds(value) for name, value in msg.properties.items()},
            body_bytes=len(msg.body),
            body_sha256=hashlib.sha256(msg.body).hexdigest(),
        )
        return name, run, steps[min(run, len(steps)) - 1]

    def end(self, name: str, run: int, step: dict[str, Any]) -> None:
        if step["do"] == "exit":
            os.kill(os.getpid(), signal.SIGKILL)
        say("settled", id=name, run=run, at_ms=now_ms())
        if step["do"] == "error":
            raise type(step["type"] or "Exception", (Exception,), {})(step["message"])
        if step["do"] == "fatal":
            raise Hopeless(step["message"])
        if step["do"] == "retry_after":
            raise retryrmq.RetryAfter(timedelta(milliseconds=step["delay_ms"]), step["message"])
        if step["do"] == "park":
            if "within" in step:
                raise Exception(step["within"]) from retryrmq.Park(step["reason"])
            raise retryrmq.Park(step["reason"])
        if step["do"] == "defer":
            raise retryrmq.Defer(timedelta(milliseconds=step["delay_ms"]))
        if step["do"] == "panic":
            raise Panic(step["message"])


class Tell(logging.Handler):
    """Tells every line of the package's log."""

    def emit(self, record: logging.LogRecord) -> None:
        level = {"WARNING": "warn"}.get(record.levelname, record.levelname.lower())
        text = record.getMessage()
        say("log", level=level, text=text)
        if text.startswith("consuming "):
            say("ready")


def milliseconds(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def consume(order: dict[str, Any], how: str) -> None:
    options = dict(order["consume"])
    queue_type = options.pop("queue_type", None)
    if "handler_timeout_ms" in options:
        options["handler_timeout"] = milliseconds(options.pop("handler_timeout_ms"))
    if options.get("pause"):
        pause = options["pause"]
        options["pause"] = retryrmq.Pause(pause["share"], pause["window"], milliseconds(pause["for_ms"]))
    script = Script(order["handler"], order["runs"])
    logging.getLogger("retryrmq").setLevel(logging.DEBUG)
    logging.getLogger("retryrmq").addHandler(Tell())

    def told(event: retryrmq.Event) -> None:
        say("event", kind=event.name, **vars(event))

    try:
        fatal = (Hopeless,) if options.pop("fatal", options.get("dlx")) else ()  # it needs retries
        app = retryrmq.App(order["url"], queue_type=queue_type)
        decorate = app.consume(order["queue"], fatal=fatal, on_event=told, **options)
        if how == "async":

            @decorate
            async def handle(msg: retryrmq.Message) -> None:
                name, run, step = script.begin(msg)
                await asyncio.sleep(step.get("sleep_ms", 0) / 1000)
                script.end(name, run, step)

        else:

            @decorate
            def handle_sync(msg: retryrmq.Message) -> None:
                name, run, step = script.begin(msg)
                time.sleep(step.get("sleep_ms", 0) / 1000)
                script.end(name, run, step)

        app.run()
    except retryrmq.RetryRmqError as error:
        say("refused", code=error.code, message=str(error))
    else:
        say("done")


def replay(order: dict[str, Any]) -> None:
    with (
        retryrmq.connect_blocking(order["url"]) as client,
        client.parked(order["queue"]) as parked,
    ):
        for it in parked:
            say(
                "parked",
                id=identity(it.message),
                reason=it.reason,
                by_broker=it.by_broker,
                home=it.home,
                error=it.error,
                error_type=it.error_type,
                attempts=it.attempts,
            )
            parked.replay(it)


async def publish(order: dict[str, Any]) -> None:
    async with retryrmq.connect(order["url"]) as client:
        for message in order["messages"]:
            delay = message.get("delay_ms")
            at_ms = now_ms()
            await client.publish(
                message["routing_key"],
                message["body"],
                exchange=message["exchange"],
                headers=message["headers"],
                **({} if delay is None else {"delay": milliseconds(delay)}),
            )
            say("published", id=message["id"], at_ms=at_ms)


def main() -> None:
    how = sys.argv[1]
    order = json.load(sys.stdin)
    task = order["task"]
    if task == "describe":
        say("driver", name=f"python-{how}", can=CAN)
    elif task == "consume":
        consume(order, how)
    elif task == "replay":
        replay(order)
    elif task == "publish":
        asyncio.run(publish(order))
    else:
        sys.exit(f"unknown task {task!r}")


if __name__ == "__main__":
    main()
