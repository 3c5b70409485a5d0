"""The log: whatever people's log handlers do, consumers go on."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import retryrmq
from conftest import Broker, eventually, soon
from retryrmq import _log_queue, _logs, _notifications


class Handler(logging.Handler):
    """Does anything with a line."""

    def __init__(self, do: Callable[[str], None]) -> None:
        super().__init__()
        self._do = do

    def emit(self, record: logging.LogRecord) -> None:
        self._do(record.getMessage())


@contextlib.contextmanager
def logged_by(do: Callable[[str], None]) -> Iterator[None]:
    handler, logger = Handler(do), logging.getLogger("retryrmq")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


FAILS: Any = {"dlx": True, "retry": "fixed(50ms, retries=0)"}


def test_a_log_handler_that_exits_ends_no_consumer(broker: Broker) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    exited: list[str] = []

    def leave(line: str) -> None:
        if "failed" in line and queue in line:
            exited.append(line)
            raise SystemExit(1)

    @app.consume(queue, **FAILS)
    async def handle(msg: retryrmq.Message) -> None:
        if msg.text() == "bad":
            raise ValueError("no")

    async def main() -> None:
        async with app:
            for body in ("bad", "bad", "good"):
                await asyncio.wait_for(app.publish(queue, body), 60)
            await soon("all have ended", lambda: (app.stats()[queue].parked, app.stats()[queue].acked) == (2, 1))
            await soon("every line was written", lambda: len(exited) == 2)
            await asyncio.wait_for(app.publish(queue, "good"), 60)
            await soon("it goes on", lambda: app.stats()[queue].acked == 2)

    with logged_by(leave):
        asyncio.run(main())


def test_a_level_that_changes_later_is_followed(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)

    @app.consume(queue, dlx=True, retry="fixed(20ms, retries=100000)")
    async def handle(msg: retryrmq.Message) -> None:
        raise ValueError("no")

    def said() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.name == "retryrmq.attempt"]
        return [line for line in lines if queue in line]  # another test's client may still log

    async def main() -> None:
        async with app:
            await app.publish(queue, "a")
            await soon("it was retried", lambda: app.stats()[queue].retried >= 2)
            assert said() == []
            caplog.set_level(logging.INFO, "retryrmq")
            await soon("the next ones are logged", lambda: len(said()) >= 2)

    caplog.set_level(logging.WARNING, "retryrmq")
    asyncio.run(main())
    assert "failed: ValueError: no; retry in 20ms" in said()[0]


def test_a_log_handler_may_wait_for_the_event_loop(broker: Broker) -> None:
    queue, lines = broker.queue(), broker.queue("lines")
    app = retryrmq.App(broker.url)
    shipped: list[str] = []

    @app.consume(queue, **FAILS)
    async def handle(msg: retryrmq.Message) -> None:
        raise ValueError("no")

    async def main() -> None:
        loop, here = asyncio.get_running_loop(), threading.get_ident()

        def ship(line: str) -> None:
            if threading.get_ident() != here and "failed" in line and queue in line:
                asyncio.run_coroutine_threadsafe(app.publish(lines, line), loop).result(60)
                shipped.append(line)

        async with app:
            async with app.client.consume(lines, dlx=True):
                pass
            with logged_by(ship):
                await app.publish(queue, "a")
                await soon("its line is published", lambda: len(shipped) == 1)
            await soon("it is parked", lambda: app.stats()[queue].parked == 1)

    asyncio.run(main())


def test_a_log_handler_that_waits_holds_up_nobody(broker: Broker) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    waits, go_on = threading.Event(), threading.Event()

    def wait(line: str) -> None:
        if "failed" in line and queue in line:
            waits.set()
            go_on.wait(60)

    @app.consume(queue, **FAILS)
    async def handle(msg: retryrmq.Message) -> None:
        if msg.text() == "bad":
            raise ValueError("no")

    async def main() -> None:
        async with app:
            await app.publish(queue, "bad")
            await soon("the log handler waits", waits.is_set)
            await asyncio.wait_for(app.publish(queue, "good"), 60)
            await soon("the others go on", lambda: app.stats()[queue].acked == 1 and app.stats()[queue].parked == 1)
            assert not go_on.is_set()
            go_on.set()

    with logged_by(wait):
        asyncio.run(main())


def test_lines_that_are_too_many_are_dropped_and_said() -> None:
    go_on = threading.Event()
    lines, written = _log_queue.LogQueue(), []

    def slow(line: str) -> None:
        if not line.startswith("line ") and "dropped" not in line:
            return  # of another test's client
        written.append(line)
        go_on.wait(60)

    with logged_by(slow):
        lines.write("retryrmq", logging.WARNING, "line %d", 0)
        eventually("the first one is being written", lambda: written == ["line 0"])
        for number in range(_log_queue.MAX_LINES + 7):
            lines.write("retryrmq", logging.WARNING, "line %d", number)
        go_on.set()
        lines.wait(60)
        eventually("all is written", lambda: len(written) >= _log_queue.MAX_LINES + 2)
    dropped = [line for line in written if "dropped" in line]
    assert dropped == ["7 lines of the log were dropped: its handlers are too slow"]


def test_lines_are_written_before_the_end_of_the_process_is_over() -> None:
    lines, written = _log_queue.LogQueue(), list[str]()
    # Others are of another test's client.
    with logged_by(lambda line: written.append(line) if line.startswith("line ") else None):
        for number in range(1_000):
            lines.write("retryrmq", logging.WARNING, "line %d", number)
        lines.wait(60)
        assert written == [f"line {number}" for number in range(1_000)]


class Odd:
    """Takes no calls."""

    def call_soon_threadsafe(self, *args: Any) -> None:
        raise SystemExit(1)


def test_what_one_is_told_badly_keeps_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = _notifications.dispatcher()
    told: list[object] = []

    async def main() -> None:
        bad, good = next(dispatcher._tickets), next(dispatcher._tickets)
        operation: Any = object()
        dispatcher._pending[bad] = _notifications._PendingOperation(Odd(), told.append, operation, lambda: None)  # type: ignore[arg-type]
        dispatcher._pending[good] = _notifications._PendingOperation(
            asyncio.get_running_loop(), told.append, operation, lambda: None
        )
        dispatcher._dispatch([bad, good], [], [], [], 0)
        await soon("the second one is told", lambda: told == [operation])

    asyncio.run(main())
    eventually("it is logged", lambda: "notifications were lost" in caplog.text)


def test_records_have_what_they_are_about_as_attributes(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)

    @app.consume(queue, **FAILS)
    async def handle(msg: retryrmq.Message) -> None:
        raise ValueError("no")

    async def main() -> None:
        async with app:
            await app.publish(queue, "7", message_id="order\n7", headers={"x-retry-count": "many"})
            await soon("it is parked", lambda: app.stats()[queue].parked == 1)

    def found(name: str, containing: str) -> list[dict[str, Any]]:
        records = [vars(it) for it in caplog.records if it.name == name and containing in it.getMessage()]
        # What has no message yet is being formatted.
        return [it for it in records if it.get("queue") == queue and "message" in it]

    caplog.set_level(logging.DEBUG, "retryrmq")
    asyncio.run(main())
    (failed,) = found("retryrmq.handler", "the trace of")
    assert (failed["message_id"], failed["attempt"], failed["error_type"]) == ("order\\n7", 1, "ValueError")
    assert failed["exc_info"][0] is ValueError
    eventually("the core's line is there", lambda: found("retryrmq.consumer", "a header is not believed"))
    (header,) = found("retryrmq.consumer", "a header is not believed")
    assert header["header"] == "x-retry-count"
    assert f"queue={queue} header=x-retry-count" in header["message"], "the text says the same"


def test_a_field_that_a_record_has_already_gets_another_name() -> None:
    fields = _logs.fields([("name", "a\x1bb"), ("message", "c"), ("attempt", "12"), ("queue", "12"), ("why", None)])
    assert fields == {"retryrmq_name": "a\\x1bb", "retryrmq_message": "c", "attempt": 12, "queue": "12"}
    logging.getLogger("retryrmq").info("it can be logged", extra=fields)


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_a_factory_of_records_that_sets_our_fields_costs_no_line(
    broker: Broker, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    began, go_on = threading.Event(), threading.Event()
    make = logging.getLogRecordFactory()

    def factory(*args: Any, **options: Any) -> logging.LogRecord:
        record = make(*args, **options)
        record.queue, record.count = "theirs", 0
        return record

    async def on_loop(msg: retryrmq.Message) -> None:
        if msg.text() == "bad":
            raise ValueError("no")
        msg.park("by hand")  # the core warns of those that are not settled
        began.set()
        await asyncio.sleep(3600)

    def on_thread(msg: retryrmq.Message) -> None:
        if msg.text() == "bad":
            raise ValueError("no")
        msg.park("by hand")
        began.set()
        go_on.wait(60)

    app.consume(queue, drain_timeout="0s", **FAILS)(on_loop if kind == "async" else on_thread)

    async def main() -> None:
        async with app:
            await app.publish(queue, "bad")
            await soon("it is parked", lambda: app.stats()[queue].parked == 1)
            await app.publish(queue, "outlasts")
            await soon("it is handled", began.is_set)

    def said(text: str) -> list[dict[str, Any]]:
        records = [vars(it) for it in caplog.records if text in it.getMessage()]
        return [it for it in records if it.get("retryrmq_queue") == queue]

    caplog.set_level(logging.DEBUG, "retryrmq")
    logging.setLogRecordFactory(factory)
    try:
        asyncio.run(main())
        for text in ("consuming ", "the trace of", "still run after `drain_timeout`"):
            eventually(f"{text} is logged", functools.partial(said, text))
        eventually("the core's line is logged", lambda: said("parked as exhausted"))
    finally:
        logging.setLogRecordFactory(make)
        go_on.set()
    (trace,) = said("the trace of")
    assert (trace["queue"], trace["attempt"], trace["error_type"]) == ("theirs", 1, "ValueError")
    (left,) = said("still run after `drain_timeout`")
    assert (left["count"], left["retryrmq_count"]) == (0, 1)
