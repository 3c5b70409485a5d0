"""Consuming from real brokers: the app, the plain forms, handlers of every sort."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
import retryrmq
from conftest import PATIENCE, Broker, eventually, soon


def test_a_failed_message_comes_back_at_the_tail_counted(every_broker: Broker) -> None:
    queue = every_broker.queue()
    app = retryrmq.App(every_broker.url)
    seen: list[tuple[str, int]] = []
    events: list[retryrmq.Event] = []
    bad = {"a"}
    published = asyncio.Event()

    @app.consume(queue, dlx=True, retry="fixed(200ms, retries=1)", concurrency=1, on_event=events.append)
    async def handle(msg: retryrmq.Message) -> None:
        seen.append((msg.text(), msg.attempt))
        await published.wait()  # so that the others are before what comes back
        if msg.text() in bad:
            raise ValueError("a is bad")

    async def main() -> None:
        async with app:
            for body in "abc":
                await app.publish(queue, body, message_id=body)
            published.set()
            await soon("a is parked", lambda: app.stats()[queue].parked == 1)
            async with app.parked(queue) as parked:
                assert len(parked) == 1
                async for it in parked:
                    assert (it.reason, it.error, it.error_type, it.attempts) == (
                        "exhausted",
                        "a is bad",
                        "ValueError",
                        2,
                    )
                    assert it.stack is not None and "a is bad" in it.stack and "_workers" not in it.stack
                    assert it.message.first_failed_at == it.message.history[0].at
                    bad.clear()  # it arrives before the replay has ended
                    await parked.replay(it)
            await soon("the replayed one arrives", lambda: ("a", 1) in seen[3:])
            await soon("its event", lambda: any(isinstance(event, retryrmq.Replayed) for event in events))

    asyncio.run(main())
    assert app.stats()[queue].parked == 1  # also after the end
    assert repr(app) == f"<retryrmq.App queues=['{queue}'] not running>"
    assert seen[:4] == [("a", 1), ("b", 1), ("c", 1), ("a", 2)]
    retried = next(event for event in events if isinstance(event, retryrmq.Retried))
    assert (retried.queue, retried.message_id, retried.attempt, retried.error) == (queue, "a", 1, "a is bad")


def test_the_higher_priority_gets_the_messages_while_it_has_room(broker: Broker) -> None:
    queue = broker.queue()
    seen: dict[str, int] = {"high": 0, "low": 0}

    async def main() -> None:
        async with retryrmq.connect(broker.url) as client:

            async def high(msg: retryrmq.Message) -> None:
                seen["high"] += 1

            async def low(msg: retryrmq.Message) -> None:
                seen["low"] += 1

            async with client.consume(queue, high, dlx=True, priority=5) as consumer:

                def done() -> int:  # a message that is not acknowledged yet takes its room
                    return consumer.stats().acked

                for number in range(3):  # it takes one at a time before it has seen some
                    await client.publish(queue, "x")
                    await soon("the only consumer has done it", lambda number=number: done() > number)
                async with client.consume(queue, low, dlx=True, priority=-5):
                    for number in range(3, 20):
                        await client.publish(queue, "x")
                        await soon("somebody has done it", lambda number=number: done() > number)

    asyncio.run(main())
    assert seen == {"high": 20, "low": 0}


def test_the_plain_form_settles_by_hand(broker: Broker) -> None:
    queue = broker.queue()

    async def main() -> None:
        async with retryrmq.connect(broker.url) as client:
            async with client.consume(queue, dlx=True, retry="fixed(100ms, retries=1)") as consumer:
                for body in ("ack", "retry", "park", "defer"):
                    await client.publish(queue, body)
                ended = []
                async for msg in consumer:
                    body = msg.text()
                    if body == "retry" and msg.attempt == 1:
                        await msg.retry(ValueError("not now"), delay="150ms")
                        continue
                    if body == "defer" and not msg.headers.get("x-retry-deferrals"):
                        msg.defer("100ms")
                        continue
                    ended.append((body, msg.attempt, msg.last_error))
                    if body == "park":
                        await msg.park("no such customer")
                    else:
                        await msg.ack()
                        await msg.ack()  # does nothing
                    if len(ended) == 4:
                        break
                await soon("the stale one is counted", lambda: consumer.stats().stale == 3)
            assert sorted(ended) == [
                ("ack", 1, None),
                ("defer", 1, None),
                ("park", 1, None),
                ("retry", 2, "not now"),
            ]
            assert consumer.stats().outstanding == 0
            with pytest.raises(retryrmq.ClosedError):
                async for _ in consumer:
                    pass

    asyncio.run(main())


def test_leaving_by_an_exception_gives_everything_back(broker: Broker) -> None:
    queue = broker.queue()

    async def main() -> None:
        async with retryrmq.connect(broker.url) as client:
            with pytest.raises(ZeroDivisionError):
                async with client.consume(queue, dlx=True) as consumer:
                    for body in "abc":
                        await client.publish(queue, body)
                    async for _msg in consumer:
                        raise ZeroDivisionError
            seen = []
            async with client.consume(queue, dlx=True) as consumer:
                async for msg in consumer:
                    seen.append(msg.text())
                    await msg.ack()
                    if len(seen) == 3:
                        break
            assert sorted(seen) == ["a", "b", "c"]

    asyncio.run(main())


def test_the_blocking_form(broker: Broker) -> None:
    queue = broker.queue()
    with retryrmq.connect_blocking(broker.url) as client:
        with client.consume(queue, dlx=True, retry="fixed(100ms, retries=1)") as consumer:
            for body in "abc":
                client.publish(queue, body)
            ended = []
            for msg in consumer:
                if msg.text() == "b" and msg.attempt == 1:
                    msg.retry("busy")
                    continue
                msg.ack()
                ended.append((msg.text(), msg.attempt))
                if len(ended) == 3:
                    break
        assert sorted(ended) == [("a", 1), ("b", 2), ("c", 1)]
        assert client.server["product"] == "RabbitMQ"
        assert f'retryrmq_messages_acked_total{{queue="{queue}"}} 3' in client.metrics_text()
        assert "guest:guest" not in repr(client)


def test_a_handler_of_the_blocking_form_runs_until_closed(broker: Broker) -> None:
    queue = broker.queue()
    seen: list[str] = []
    with retryrmq.connect_blocking(broker.url) as client:
        consumer = client.consume(queue, lambda msg: seen.append(msg.text()), dlx=True)
        consumer.start()
        runner = threading.Thread(target=consumer.run)
        runner.start()
        client.publish(queue, "a")
        eventually("a is handled", lambda: seen == ["a"])
        consumer.close()
        runner.join(PATIENCE)
        assert not runner.is_alive()


def test_a_listener_that_exits_ends_nothing(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    queue = broker.queue()

    def tell(event: retryrmq.Event) -> None:
        raise SystemExit(3)

    options: Any = {"dlx": True, "retry": "fixed(50ms, retries=0)", "on_event": tell}
    with (
        retryrmq.connect_blocking(broker.url) as client,
        client.consume(queue, lambda msg: msg.json(), **options),
    ):
        client.publish(queue, "no json")
        eventually("it is told", lambda: "an event listener raised" in caplog.text)

    async def main() -> None:  # what is awaited is answered by the same thread
        async with retryrmq.connect(broker.url) as again:
            await again.publish(queue, "b")

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


class Evil(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Loud(BaseException):
    pass


class Endless(retryrmq.RetryAfter):
    def __init__(self) -> None:
        self.delay = float("inf")


def bad_endings() -> dict[str, Any]:
    return {
        "system exit": SystemExit(3),
        "keyboard": KeyboardInterrupt(),
        "cancelled": asyncio.CancelledError(),
        "loud": Loud("loud"),
        "evil": Evil(),
        "recursion": RecursionError("deep"),
        "group": ValueError("x" * 100_000),
        "surrogate": ValueError("report\udcff.pdf"),
        "endless": Endless(),
    }


@pytest.mark.parametrize("how", ["async", "sync"])
def test_whatever_a_handler_raises_is_a_failed_attempt(broker: Broker, how: str) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    endings = bad_endings()
    if how == "async":
        del endings["keyboard"]  # on the main thread, that is Ctrl-C

    def end(msg: retryrmq.Message) -> Any:
        if msg.text() == "coroutine":
            return asyncio.sleep(0)
        if msg.text() in endings:
            raise endings[msg.text()]
        return None

    decorate = app.consume(queue, dlx=True, retry="fixed(50ms, retries=0)")
    if how == "async":

        @decorate
        async def handle(msg: retryrmq.Message) -> None:
            await asyncio.sleep(0)
            end(msg)
    else:
        decorate(end)
        endings["coroutine"] = None

    async def main() -> dict[str, str]:
        async with app:
            for body in endings:
                await app.publish(queue, body)
            await app.publish(queue, "fine")
            await soon("all ended", lambda: app.stats()[queue].parked == len(endings) and app.stats()[queue].acked == 1)
            async with app.parked(queue) as parked:
                return {it.message.text(): it.error_type async for it in parked}

    kinds = asyncio.run(main())
    expected = {body: type(error).__name__ for body, error in endings.items()}
    if how == "sync":
        expected["coroutine"] = "TypeError"
    assert kinds == expected


def test_settling_from_another_thread_and_after_the_end(broker: Broker) -> None:
    queue = broker.queue()

    async def main() -> retryrmq.Message:
        async with retryrmq.connect(broker.url) as client:
            async with client.consume(queue, dlx=True) as consumer:
                await client.publish(queue, "a")
                async for msg in consumer:
                    threads = [threading.Thread(target=msg.ack) for _ in range(4)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
                    break
                await soon("one counts", lambda: consumer.stats().stale == 3 and consumer.stats().acked == 1)
            await msg.retry("too late")
            return msg

    message = asyncio.run(main())
    message.ack()


def test_contexts_reach_the_handler_and_nothing_leaks_out_of_it(broker: Broker) -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
    names = (broker.queue("async"), broker.queue("sync"))
    app = retryrmq.App(broker.url)
    seen: list[str] = []

    async def handle(msg: retryrmq.Message) -> None:
        seen.append(tenant.get())
        tenant.set(msg.text())

    def handle_sync(msg: retryrmq.Message) -> None:
        seen.append(tenant.get())
        tenant.set(msg.text())

    app.consume(names[0], dlx=True, concurrency=1)(handle)
    app.consume(names[1], dlx=True)(handle_sync)

    async def main() -> None:
        tenant.set("acme")
        async with app:
            for body in "abc":
                for queue in names:
                    await app.publish(queue, body)
            await soon("all are handled", lambda: len(seen) == 6)

    asyncio.run(main())
    assert seen == ["acme"] * 6


def test_a_slow_handler_holds_nobody_up(broker: Broker) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    gate = asyncio.Event()
    running: set[str] = set()
    most = 0
    done: list[str] = []

    @app.consume(queue, dlx=True, concurrency=3)
    async def handle(msg: retryrmq.Message) -> None:
        nonlocal most
        running.add(msg.text())
        most = max(most, len(running))
        if msg.text() == "slow":
            await gate.wait()
        else:
            await asyncio.sleep(0.001)
        running.discard(msg.text())
        done.append(msg.text())

    async def main() -> None:
        async with app:
            await app.publish(queue, "slow")
            for number in range(50):
                await app.publish(queue, str(number))
            await soon("the others are done", lambda: len(done) == 50)
            await soon("and acknowledged", lambda: app.stats()[queue].acked == 50)
            gate.set()
            await soon("all are done", lambda: app.stats()[queue].acked == 51)

    asyncio.run(main())
    assert most <= 3
    assert done[-1] == "slow"


@pytest.mark.parametrize("how", ["async", "stubborn", "sync"])
def test_a_handler_past_its_limit_has_failed(broker: Broker, how: str) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    gate = threading.Event()
    attempts: list[int] = []

    async def handle(msg: retryrmq.Message) -> None:
        attempts.append(msg.attempt)
        while msg.attempt == 1:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                if how == "async":
                    raise
            if gate.is_set():
                return

    def handle_sync(msg: retryrmq.Message) -> None:
        attempts.append(msg.attempt)
        if msg.attempt == 1:
            gate.wait(60)

    # More retries and time than it needs: on a busy machine the second attempt may take longer than expected, too.
    options: Any = {"dlx": True, "retry": "fixed(50ms, retries=20)", "handler_timeout": "1s"}
    app.consume(queue, **options)(handle_sync if how == "sync" else handle)

    async def main() -> None:
        async with app:
            await app.publish(queue, "a")
            await soon("it is handled", lambda: app.stats()[queue].acked == 1)
            gate.set()
        assert attempts[:2] == [1, 2]

    asyncio.run(main())


def test_a_thread_that_nobody_replaced_goes_on_when_it_is_back(broker: Broker) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    gate = threading.Event()

    @app.consume(queue, dlx=True, retry="fixed(50ms, retries=20)", handler_timeout="1s")
    def handle(msg: retryrmq.Message) -> None:
        if msg.text() == "stuck" and msg.attempt == 1:
            gate.wait(60)

    async def main() -> None:
        async with app:
            for _ in range(9):  # one more than are replaced
                await app.publish(queue, "stuck")
            await soon("all are stuck", lambda: app.stats()[queue].retried >= 9)
            gate.set()
            await soon("all are handled", lambda: app.stats()[queue].acked == 9)

    asyncio.run(main())


def test_what_is_parked_at_once_has_a_trace(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    queue = broker.queue()
    caplog.set_level(logging.DEBUG, "retryrmq")
    app = retryrmq.App(broker.url)

    @app.consume(queue, dlx=True, fatal=KeyError)
    async def handle(msg: retryrmq.Message) -> None:
        try:
            raise KeyError(msg.text())
        except KeyError as error:
            if msg.text() == "fatal":
                raise
            raise retryrmq.Park("no such customer") from error

    async def main() -> dict[str | None, str]:
        async with app:
            for body in ("fatal", "park"):
                await app.publish(queue, body)
            await soon("both are parked", lambda: app.stats()[queue].parked == 2)
            await soon("both are in the log", lambda: len(said()) == 2)
            async with app.parked(queue) as parked:
                return {it.reason: it.stack or "" async for it in parked}

    def said() -> list[tuple[str, str]]:
        lines = [record for record in caplog.records if record.name == "retryrmq.attempt"]
        own = [line for line in lines if queue in line.getMessage()]  # another test's client may still log
        return sorted((line.levelname, line.getMessage().split(" failed: ")[1]) for line in own)

    stacks = asyncio.run(main())
    assert "KeyError: 'fatal'" in stacks["fatal"] and "test_consuming" in stacks["fatal"]
    assert "KeyError: 'park'" in stacks["requested"] and "_workers" not in stacks["requested"]
    assert said() == [
        ("WARNING", "KeyError: 'fatal'; parked as fatal"),
        ("WARNING", "KeyError: no such customer; parked as requested"),
    ]
    own = [
        record for record in caplog.records if record.name == "retryrmq.handler" and vars(record).get("queue") == queue
    ]
    traces = [record.exc_info for record in own if record.exc_info]
    assert {type(trace[1]) for trace in traces} == {KeyError, retryrmq.Park}


def test_log_lines_reach_logging(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    caplog.set_level(logging.DEBUG, "retryrmq")

    @app.consume(queue)
    async def handle(msg: retryrmq.Message) -> None:
        raise ValueError("rejected")

    async def main() -> None:
        async with retryrmq.connect(broker.url) as client, client.consume(queue, dlx=True):
            pass  # makes the queue
        async with app:
            await app.publish(queue, "a")
            await soon("it is rejected", lambda: app.stats()[queue].rejected == 1)
            await soon("the core's warning", lambda: levels("dlx is off"))

    def levels(says: str) -> list[int]:
        lines = [record for record in caplog.records if record.name == "retryrmq.consumer"]
        return [line.levelno for line in lines if says in line.getMessage() and queue in line.getMessage()]

    asyncio.run(main())
    assert levels("dlx is off") == [logging.WARNING]
    assert levels("dlx was not set") == [logging.WARNING]
    assert levels("did not exist and was created") == [logging.INFO]
    assert any(record.name == "retryrmq.handler" for record in caplog.records)


def test_whoever_chose_about_dlx_is_not_warned_at_the_start(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    queue = broker.queue()

    def warnings() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        return [line for line in lines if queue in line]

    with retryrmq.connect_blocking(broker.url) as client:
        for options in ({"dlx": True}, {"dlx": False}):
            with client.consume(queue, **options):
                pass
    assert warnings() == []  # leaving the client logs what there is
    with retryrmq.connect_blocking(broker.url) as client, client.consume(queue):
        pass
    (warning,) = warnings()
    assert "dlx was not set" in warning


def test_parked_messages_are_dropped_on_a_loop_and_their_history_has_the_version(broker: Broker) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url, app_version="1.2.3")

    @app.consume(queue, dlx=True, retry="fixed(50ms, retries=0)")
    async def handle(msg: retryrmq.Message) -> None:
        raise ValueError(msg.text())

    async def main() -> None:
        async with app:
            for body in ("drop", "keep"):
                await app.publish(queue, body)
            await soon("both are parked", lambda: app.stats()[queue].parked == 2)
            async with app.parked(queue) as parked:
                async for it in parked:
                    assert [entry.app_version for entry in it.message.history] == ["1.2.3"]
                    if it.error == "drop":
                        await parked.drop(it)
            await soon("only the other one is left", lambda: left_is(["keep"]))

    async def left_is(errors: list[str]) -> bool:
        async with app.parked(queue) as parked:
            return [it.error async for it in parked] == errors

    asyncio.run(main())


def test_a_pause_and_its_end_are_told(broker: Broker) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    told: list[retryrmq.Event] = []
    down = [True]

    @app.consume(
        queue,
        dlx=True,
        retry="fixed(50ms, retries=50)",
        concurrency=1,
        pause=retryrmq.Pause(failures=0.5, window=4, duration="300ms"),
        on_event=told.append,
    )
    async def handle(msg: retryrmq.Message) -> None:
        if down[0]:
            raise ConnectionError("down")

    async def main() -> None:
        async with app:
            for _ in range(8):
                await app.publish(queue, "a")
            await soon("it pauses", lambda: any(isinstance(event, retryrmq.Paused) for event in told))
            down[0] = False
            await soon("it goes on", lambda: any(isinstance(event, retryrmq.Resumed) for event in told))
            await soon("all are handled", lambda: app.stats()[queue].acked == 8)

    asyncio.run(main())
    assert retryrmq.Paused(queue, timedelta(milliseconds=300)) in told
    assert retryrmq.Resumed(queue) in told
