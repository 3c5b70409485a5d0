"""What is left in memory after lost connections, failed handlers and many ends."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Broker
from program import Program, left_in, make_queue
from proxy import Proxy


@pytest.mark.parametrize("how", ["async", "sync"])
def test_lost_connections_lose_no_message_and_no_memory(broker: Broker, programs: list[Program], how: str) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    proxy = Proxy(broker.url)
    program = Program(
        f"""
        import gc, logging
        logging.getLogger("retryrmq").setLevel(logging.CRITICAL)
        app = retryrmq.App(url)
        handled, total = set(), 2000

        def work(msg):
            if msg.attempt == 1 and int(msg.text()) % 3 == 0:
                raise ValueError("third")
            time.sleep(0.0005)
            handled.add(msg.text())
            if len(handled) % 250 == 0:
                say(handled=len(handled))

        async def work_later(msg):
            await asyncio.sleep(0.001)
            work(msg)

        handler = work if {how!r} == "sync" else work_later
        app.consume(queue, dlx=True, retry="fixed(100ms, retries=3)")(handler)

        async def main():
            async with app:
                await asyncio.gather(*(app.publish(queue, str(n), message_id=str(n)) for n in range(total)))
                while len(handled) < total:
                    await asyncio.sleep(0.01)
                while app.stats()[queue].outstanding:
                    await asyncio.sleep(0.01)
                stats = app.stats()[queue]
                say(parked=stats.parked, reconnects=stats.reconnects)

        asyncio.run(main())
        del app
        gc.collect()
        # The thread that told of the last answer may still be about to let go of it.
        patience = time.monotonic() + 60
        while any(retryrmq._native.live_objects().values()) and time.monotonic() < patience:
            time.sleep(0.01)
        say(live=retryrmq._native.live_objects())
        """,
        broker,
        queue,
        proxy.url,
    )
    programs.append(program)
    lines: list[Any] = []
    while "parked" not in (line := program.line()):
        lines.append(line)
        if len(lines) in (2, 4, 6):
            assert proxy.cut() >= 2
    assert line["parked"] == 0 and line["reconnects"] >= 1
    live = program.line()["live"]
    assert program.end() == 0
    proxy.close()
    assert {kind: count for kind, count in live.items() if count} == {}
    assert left_in(broker, queue) == []


@pytest.mark.parametrize("how", ["async", "sync"])
def test_failed_handlers_leave_nothing_native(broker: Broker, programs: list[Program], how: str) -> None:
    queue = broker.queue()
    program = Program(
        f"""
        import gc, logging
        logging.disable(logging.CRITICAL)
        kinds = [SystemExit, asyncio.CancelledError, BaseException, RecursionError, ValueError]
        if {how!r} == "sync":  # on the main thread it is Ctrl-C
            kinds.append(KeyboardInterrupt)

        def handle(msg):
            error = kinds[int(msg.text())]()
            error.message = msg
            raise error

        async def handle_async(msg):
            handle(msg)

        async def main():
            app = retryrmq.App(url)
            app.consume(queue, dlx=True, retry="fixed(50ms, retries=1)")(handle if {how!r} == "sync" else handle_async)
            async with app:
                for number in range(len(kinds)):
                    await app.publish(queue, str(number))
                while app.stats()[queue].parked < len(kinds):
                    await asyncio.sleep(0.01)

        asyncio.run(main())
        patience = time.monotonic() + 60
        while gc.collect() >= 0 and any(retryrmq._native.live_objects().values()) and time.monotonic() < patience:
            time.sleep(0.01)
        say(live=retryrmq._native.live_objects())
        """,
        broker,
        queue,
    )
    programs.append(program)
    assert not any(program.line()["live"].values())
    assert program.end() == 0


def test_stopping_again_and_again_leaves_nothing(broker: Broker, programs: list[Program]) -> None:
    queue = broker.queue()
    program = Program(
        """
        import gc

        async def once():
            app = retryrmq.App(url)
            done = []

            @app.consume(queue, dlx=True, on_event=done.append)
            async def handle(msg):
                done.append(msg.headers)

            async with app:
                await app.publish(queue, "a", headers={"n": [1, {"deep": b"x"}]})
                while not done:
                    await asyncio.sleep(0.001)
                async with app.parked(queue) as parked:
                    async for it in parked:
                        pass

        def left():
            gc.collect()
            live = {kind: count for kind, count in retryrmq._native.live_objects().items() if count}
            return dict(live=live, threads=threading.active_count(), files=len(os.listdir("/proc/self/fd")))

        def left_in_the_end(most):
            # Threads and sockets may still be about to end.
            patience = time.monotonic() + 60
            while (found := left()) and time.monotonic() < patience:
                if not found["live"] and all(found[kind] <= count for kind, count in most.items()):
                    break
                time.sleep(0.01)
            return found

        for _ in range(20):
            asyncio.run(once())
        before = left_in_the_end({})
        say(**before)
        for _ in range(20):
            asyncio.run(once())
        say(**left_in_the_end({"threads": before["threads"], "files": before["files"]}))
        """,
        broker,
        queue,
    )
    programs.append(program)
    before, after = program.lines()
    assert program.end() == 0
    assert before["live"] == after["live"] == {}
    assert after["threads"] <= before["threads"] and after["files"] <= before["files"]
