"""When memory runs out in the middle, and when Python code comes in where nobody expects it."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import retryrmq
from conftest import Broker, soon
from retryrmq.testing import simulate_blocking


def run(source: str, *args: str, **environment: str) -> str:
    """What a Python program prints; one that hangs, or is ended by a signal, is a failure."""
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(source), *args],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_simulation_is_not_locked_while_it_raises() -> None:
    # The garbage collector runs whenever something is made, an exception for example, and it runs people's code.
    said = run(
        """
        import gc
        import retryrmq
        from retryrmq._native import Options, Simulation
        from retryrmq.client import outgoing

        simulation = Simulation(Options('{"queue": "orders"}'))
        looks = []
        gc.callbacks.append(lambda phase, info: looks.append(simulation.elapsed))
        gc.set_threshold(1, 1, 1)
        try:
            simulation.publish(outgoing("x" * 300, b"", {"headers": {}}))
        except retryrmq.TooLargeError:
            gc.set_threshold(0)
            print("refused", len(looks) > 0)
        """
    )
    assert said == "refused True\n"


def test_a_batch_that_cannot_be_built_is_given_back(broker: Broker) -> None:
    pytest.importorskip("_testcapi")
    queue = broker.queue()
    said = run(
        """
        import sys, time
        import _testcapi, retryrmq

        url, queue = sys.argv[1:]
        with retryrmq.connect_blocking(url) as client:
            with client.consume(queue, dlx=True):
                pass
            for number in range(8):
                client.publish(queue, str(number))
            consumer = client.consume(queue, dlx=True, prefetch=100).start()
            taken, failures, deadline = {}, 0, time.monotonic() + 60
            start = 0
            while consumer.stats().delivered < 8 and time.monotonic() < deadline:
                time.sleep(0.01)
            while len(taken) < 8 and time.monotonic() < deadline:
                # The allocation after so many others fails: the batch, its list, a message of it.
                if failures < 6:
                    _testcapi.set_nomemory(start % 6, start % 6 + 1)
                try:
                    batch = consumer._subscription.take(8)
                except BaseException:
                    batch, failures = [], failures + 1
                finally:
                    _testcapi.remove_mem_hooks()
                start += 1
                for message in batch:
                    taken[message.text()] = message
                    message.ack()
                time.sleep(0.01)
            print(sorted(taken), failures >= 1)
            sys.stdout.flush()
            consumer.close()
        """,
        broker.url,
        queue,
    )
    assert said == f"{[str(number) for number in range(8)]} True\n"


def test_a_signal_handler_that_python_does_not_know_is_borne(broker: Broker, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "handler.c", tmp_path / "handler.so"
    source.write_text(
        "#include <signal.h>\nstatic void hear(int number) {}\n"
        "__attribute__((constructor)) static void begin(void) { signal(SIGTERM, hear); }\n"
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    said = run(
        """
        import signal, sys
        import retryrmq

        print(signal.getsignal(signal.SIGTERM))
        app = retryrmq.App(sys.argv[1])

        @app.consume(sys.argv[2], dlx=True)
        async def handle(msg):
            app.stop()

        with retryrmq.connect_blocking(sys.argv[1]) as client:
            with client.consume(sys.argv[2], dlx=True):
                pass
            client.publish(sys.argv[2], "a")
        app.run()
        print("drained")
        """,
        broker.url,
        broker.queue(),
        LD_PRELOAD=str(library),
    )
    assert said == "None\ndrained\n"


class Contrary:
    """As an array, say, whose comparison is no truth."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of this is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_a_context_variable_that_cannot_be_compared_ends_no_worker(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    variable: contextvars.ContextVar[Contrary] = contextvars.ContextVar("variable")
    variable.set(Contrary())
    seen: list[bool] = []

    @app.consume(queue, dlx=True, concurrency=1)
    async def handle(msg: retryrmq.Message) -> None:
        seen.append(variable.get() is outside)
        variable.set(Contrary())

    outside = variable.get()

    async def main() -> None:
        async with app:
            for _ in range(3):
                await app.publish(queue, "a")
            await soon("all are handled", lambda: app.stats()[queue].acked == 3)

    asyncio.run(main())
    assert seen == [True] * 3
    assert "a worker of" not in caplog.text


EVIL = "\x1b[2J\x1b]0;owned\x07 a\rb\nERROR:root:forged\u2028\u202e\x9b1m"


@pytest.mark.parametrize("how", ["async", "sync"])
def test_what_publishers_write_stays_on_its_line_of_the_log(
    broker: Broker, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    caplog.set_level(logging.DEBUG, "retryrmq")

    def fail(msg: retryrmq.Message) -> None:
        raise ValueError(f"cannot read {msg.text()}")

    async def fail_later(msg: retryrmq.Message) -> None:
        fail(msg)

    app.consume(queue, dlx=True, retry="fixed(50ms, retries=1)")(fail if how == "sync" else fail_later)

    async def main() -> None:
        async with app:
            await app.publish(queue, EVIL, message_id=EVIL)
            await soon("it is parked", lambda: app.stats()[queue].parked == 1)
            await soon("that is in the log", lambda: "parked as exhausted" in caplog.text)

    asyncio.run(main())
    lines = [logging.Formatter().format(record) for record in caplog.records if record.name.startswith("retryrmq")]
    assert any("Traceback" in line for line in lines)
    failed = [line for line in lines if " failed: " in line and queue in line]  # another test's client may still log
    assert len(failed) == 2
    for line in failed:
        assert "forged" in line and "ValueError: cannot read" in line and "\n" not in line
    assert "retry in 50ms" in failed[0] and "parked as exhausted" in failed[1]
    for line in lines:
        assert all(character.isprintable() or character == "\n" for character in line), repr(line)
        assert not any(part.startswith("ERROR:root") for part in line.split("\n")), line
    assert isinstance(next(record for record in caplog.records if record.exc_info).exc_info[1], ValueError)  # type: ignore[index]


class Error(Exception):
    pass


def test_the_lines_of_the_log_are_those_of_the_table(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    table = json.loads((Path(__file__).parent / "table.json").read_text())
    caplog.set_level(logging.DEBUG, "retryrmq")
    retries: dict[str, Any] = {"dlx": True, "retry": "fixed(200ms, retries=1)"}
    deferred = []

    async def fail(msg: retryrmq.Message) -> None:
        raise Error("no answer")

    async def put_off(msg: retryrmq.Message) -> None:
        if not deferred:
            deferred.append(msg)
            raise retryrmq.Defer("100ms")

    queue = broker.queue()

    def is_said(what: str) -> bool:
        level = table["levels"][what].upper().replace("WARN", "WARNING")
        line = table["lines"][what].replace("orders", queue)
        return (level, line) in [(record.levelname, record.getMessage()) for record in caplog.records]

    async def main() -> None:
        async with retryrmq.connect(broker.url) as client:
            for what, handler, options in (
                ("parked", fail, retries),
                ("dropped", fail, {**retries, "park": False}),
                ("rejected", fail, {}),
                ("deferred", put_off, retries),
            ):
                async with client.consume(queue, handler, **options):
                    await client.publish(queue, b"x", message_id="4711")
                    await soon(f"it is logged that it is {what}", lambda what=what: is_said(what))

    asyncio.run(main())
    assert is_said("retried")


def endless(kind: type[retryrmq.Defer], delay: Any) -> Callable[[retryrmq.Message], None]:
    def handle(msg: retryrmq.Message) -> None:
        signal = kind("5s")
        signal.delay = delay
        raise signal

    return handle


@pytest.mark.parametrize("delay", [None, float("nan"), -1.0, "5s"])
def test_a_deferral_without_a_delay_is_a_failed_attempt(delay: Any) -> None:
    app = retryrmq.App("amqp://localhost")
    app.consume("orders", dlx=True, retry="fixed(1s, retries=1)")(endless(retryrmq.Defer, delay))
    result = simulate_blocking(app, "orders", [b""])
    assert [attempt.became for attempt in result.attempts] == ["retried", "parked"]


def test_names_of_unknown_parameters_of_an_address_are_not_shown() -> None:
    with pytest.raises(retryrmq.InvalidUrlError) as refused:
        retryrmq.App("amqp://localhost/v?heartbeat=5&s3cret=1")
    assert "s3cret" not in str(refused.value) and "parameter 2" in str(refused.value)
