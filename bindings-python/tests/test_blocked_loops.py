"""Handlers that block their event loop past their timeout: each such attempt has failed, and the log says where."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import retryrmq
from conftest import Broker, eventually, soon

#: Long enough that a handler that does nothing ends in time on a busy machine.
LIMIT = 1
PARKS: dict[str, Any] = {"dlx": True, "retry": "fixed(50ms, retries=0)", "handler_timeout": f"{LIMIT}s"}


def blocked_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [it.getMessage() for it in caplog.records if "event loop was blocked" in it.getMessage()]


def test_a_blocked_loop_is_reported_while_it_is_blocked(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    gate = threading.Event()
    seen: list[str] = []
    reported: list[bool] = []

    def wait_for_the_gate() -> None:
        gate.wait(60)

    @app.consume(queue, **PARKS)
    async def handle(msg: retryrmq.Message) -> None:
        if msg.text() == "blocks":
            wait_for_the_gate()
        seen.append(msg.text())

    def open_it() -> None:
        # The loop is blocked until this thread has seen both.
        try:
            eventually("it is reported", lambda: blocked_lines(caplog))
            eventually("the attempt has failed", lambda: app.stats()[queue].failed == 1)
            reported.append(not seen)
        finally:
            gate.set()

    async def main() -> None:
        async with app:
            opener = threading.Thread(target=open_it)
            opener.start()
            await app.publish(queue, "blocks")
            await soon("it is parked", lambda: app.stats()[queue].parked == 1)
            await app.publish(queue, "goes on")
            await soon(
                "the next one is handled", lambda: seen == ["blocks", "goes on"] and app.stats()[queue].acked == 1
            )
            opener.join()
            assert reported == [True]
            async with app.parked(queue) as parked:
                async for it in parked:
                    assert (it.message.text(), it.error_type) == ("blocks", "HandlerTimeout")

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    (line,) = blocked_lines(caplog)
    assert f"{queue}: " in line and "1s" in line and "asyncio.to_thread" in line
    place = line.partition("it is in ")[2]
    assert "wait_for_the_gate (" in place and "test_blocked_loops.py" in place and "< handle (" in place
    assert "_loop_workers" not in place


def hold_the_interpreter() -> None:
    """Blocks every thread of the interpreter, so that nothing can look."""
    ctypes.PyDLL(None).sleep(LIMIT + 1)


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_whatever_ends_after_its_timeout_has_timed_out(
    broker: Broker, kind: str, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)

    def late(msg: retryrmq.Message) -> None:
        hold_the_interpreter()
        if fails:
            raise ValueError("late")

    async def late_on_a_loop(msg: retryrmq.Message) -> None:
        late(msg)

    app.consume(queue, **PARKS)(late if kind == "def" else late_on_a_loop)

    async def main() -> None:
        async with app:
            await app.publish(queue, "a")
            await soon("it is parked", lambda: app.stats()[queue].parked == 1)
            async with app.parked(queue) as parked:
                async for it in parked:
                    assert it.error_type == "HandlerTimeout"

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
        if kind == "async def":
            eventually("it is reported", lambda: len(blocked_lines(caplog)) == 1)
    assert len(blocked_lines(caplog)) == (kind == "async def")


def test_a_simulated_handler_that_blocks_has_timed_out(simulate_app: Callable[..., Any]) -> None:
    app = retryrmq.App("amqp://127.0.0.1:1")

    @app.consume("orders", **PARKS)
    async def handle(msg: retryrmq.Message) -> None:
        time.sleep(LIMIT + 0.1)

    (attempt,) = simulate_app(app, "orders", [b"7"]).attempts
    assert isinstance(attempt.error, TimeoutError) and attempt.became == "parked"
