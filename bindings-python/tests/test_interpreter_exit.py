"""Event loops that go away, executors, and ends without a goodbye."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
import retryrmq
from conftest import Broker, soon
from program import Program, left_in, make_queue


def test_a_loop_that_is_closed_loses_nothing(broker: Broker, programs: list[Program]) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    with retryrmq.connect_blocking(broker.url) as client:
        for body in "abc":
            client.publish(queue, body)
    program = Program(
        """
        loop = asyncio.new_event_loop()
        begun = []

        async def begin():
            client = await retryrmq.connect(url)

            async def handle(msg):
                begun.append(msg.text())
                await asyncio.sleep(3600)

            await client.consume(queue, handle, dlx=True, concurrency=2).start()
            while len(begun) < 2:
                await asyncio.sleep(0.01)

        loop.run_until_complete(begin())
        loop.close()
        say(begun=begun)
        """,
        broker,
        queue,
    )
    programs.append(program)
    assert len(program.line()["begun"]) == 2
    assert program.end() == 0
    assert sorted(body for body, _ in left_in(broker, queue)) == ["a", "b", "c"]


@pytest.mark.parametrize("how", ["consumer.stop()", "loop.stop()"])
def test_what_is_handled_when_it_stops_does_not_come_again(broker: Broker, programs: list[Program], how: str) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    with retryrmq.connect_blocking(broker.url) as client:
        for number in range(40):
            client.publish(queue, str(number))
    program = Program(
        f"""
        loop = asyncio.new_event_loop()
        handled = []

        async def handle(msg):
            while not handled and consumer.stats().outstanding < 40:
                time.sleep(0.01)  # the others are handled in one stretch
            handled.append(msg.text())
            if len(handled) == 21:
                {how}
                if consumer._subscription.is_closing:
                    consumer._subscription.wait_closed().wait()
                await asyncio.sleep(3600)

        async def main():
            global consumer
            client = await retryrmq.connect(url)
            consumer = client.consume(queue, handle, dlx=True, prefetch=64)
            await consumer.run()

        serving = loop.create_task(main())
        serving.add_done_callback(lambda _: loop.stop())
        loop.run_forever()
        say(handled=handled)
        """,
        broker,
        queue,
    )
    programs.append(program)
    numbers = [str(number) for number in range(40)]
    assert program.line() == {"handled": numbers[:21]}
    assert program.end() == 0
    assert sorted(int(body) for body, _ in left_in(broker, queue)) == list(range(20, 40))


def test_what_no_handler_has_begun_when_it_stops_does_not_count_as_delivered(broker: Broker) -> None:
    queue = broker.queue()
    counted: dict[str, int] = {}

    async def run() -> None:
        began = asyncio.Event()

        async def handle(msg: retryrmq.Message) -> None:
            if msg.text() == "150":
                await soon("the next one has arrived", lambda: consumer.stats().delivered > 151)
                began.set()
                await asyncio.sleep(3600)

        async with retryrmq.connect(broker.url) as client:
            async with client.consume(queue, dlx=True):
                pass
            for number in range(250):  # so quick that more and more of them are taken at once
                await client.publish(queue, str(number))
            consumer = await client.consume(queue, handle, dlx=True, concurrency=1).start()
            await began.wait()
            consumer.stop()
            async with client.consume(queue, dlx=True) as again:
                async for msg in again:
                    counted[msg.text()] = msg.headers.get("x-delivery-count", 0)
                    await msg.ack()
                    if len(counted) == 100:
                        break

    asyncio.run(run())
    assert set(counted) == {str(number) for number in range(150, 250)}
    # The broker may have sent more that had not arrived here.
    assert (counted["150"], counted["151"]) == (1, 0)


@pytest.mark.parametrize("how", ["threads", "iteration", "a loop on another thread"])
def test_what_no_handler_has_begun_when_the_program_ends_does_not_count_as_delivered(
    broker: Broker, programs: list[Program], how: str
) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    with retryrmq.connect_blocking(broker.url) as client:
        for number in range(250):  # so quick that more and more of them are taken at once
            client.publish(queue, str(number))
    program = Program(
        f"""
        how, began = {how!r}, threading.Event()

        def next_one_arrives():
            while consumer.stats().delivered <= 151:
                time.sleep(0.01)

        def handle(msg):
            if msg.text() == "150":
                next_one_arrives()
                began.set()
                time.sleep(3600)

        async def run():
            global consumer
            async with retryrmq.connect(url) as client:
                consumer = client.consume(queue, handle_it, dlx=True, concurrency=1)
                await consumer.run()

        async def handle_it(msg):
            handle(msg)

        if how == "a loop on another thread":
            threading.Thread(target=asyncio.run, args=(run(),), daemon=True).start()
            began.wait()
        elif how == "threads":
            client = retryrmq.connect_blocking(url)
            consumer = client.consume(queue, handle, dlx=True, concurrency=1).start()
            began.wait()
        else:
            client = retryrmq.connect_blocking(url)
            consumer = client.consume(queue, dlx=True)
            for msg in consumer:
                if msg.text() == "150":
                    next_one_arrives()
                    break
                msg.ack()
        """,
        broker,
        queue,
    )
    programs.append(program)
    assert program.end() == 0
    counted: dict[str, int] = {}
    with retryrmq.connect_blocking(broker.url) as client, client.consume(queue, dlx=True) as again:
        for msg in again:
            counted[msg.text()] = msg.headers.get("x-delivery-count", 0)
            msg.ack()
            if len(counted) == 100:
                break
    # The broker may have sent more that had not arrived here.
    assert (counted["150"], counted["151"]) == (1, 0)


@pytest.mark.parametrize("ending", ["pass", "sys.exit(3)", "os._exit(4)", "raise ZeroDivisionError"])
def test_an_end_without_goodbye_loses_nothing(broker: Broker, programs: list[Program], ending: str) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    with retryrmq.connect_blocking(broker.url) as client:
        for body in "ab":
            client.publish(queue, body)
    program = Program(
        f"""
        sys.stderr = open(os.devnull, "w")
        client = retryrmq.connect_blocking(url)
        consumer = client.consume(queue, dlx=True)
        for msg in consumer:
            say(got=msg.text())
            if msg.text() == "a":
                msg.ack()
                while consumer.stats().outstanding > 1:
                    time.sleep(0.01)
                continue
            break
        {ending}
        """,
        broker,
        queue,
    )
    programs.append(program)
    assert program.lines() == [{"got": "a"}, {"got": "b"}]
    assert program.end() == {"pass": 0, "sys.exit(3)": 3, "os._exit(4)": 4}.get(ending, 1)
    assert [body for body, _ in left_in(broker, queue)][-1] == "b"


@pytest.mark.parametrize("where", ["threads", "loop", "processes"])
def test_the_end_of_executors_fails_no_message(broker: Broker, programs: list[Program], where: str) -> None:
    """The interpreter waits for what executors have to do, and they take no more."""
    queue = broker.queue()
    make_queue(broker, queue)
    source = """
        from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

        pool = ThreadPoolExecutor(2)
        last = ProcessPoolExecutor(1) if WHERE == "processes" else pool
        retry = dict(dlx=True, retry="fixed(1s, retries=0)", concurrency=2)

        def handle(msg):
            say(began=msg.text())
            pool.submit(time.sleep, 0.05).result()

        async def handle_on_loop(msg):
            say(began=msg.text())
            await asyncio.get_running_loop().run_in_executor(pool, time.sleep, 0.05)

        async def consume():
            async with retryrmq.connect(url) as client, client.consume(queue, handle_on_loop, **retry):
                await asyncio.sleep(3600)

        if WHERE != "loop":
            client = retryrmq.connect_blocking(url)
            consumer = client.consume(queue, handle, **retry).start()
        else:
            threading.Thread(target=asyncio.run, args=(consume(),), daemon=True).start()
        sys.stdin.read()
        last.submit(time.sleep, 1)
        sys.exit(0)
    """
    # More than are handled until the program ends, however late it hears of it.
    bodies = [str(number) for number in range(400)]
    with retryrmq.connect_blocking(broker.url) as client:
        for body in bodies:
            client.publish(queue, body)
        program = Program(source.replace("WHERE", repr(where)), broker, queue, stdin=subprocess.PIPE)
        programs.append(program)
        began = {program.line()["began"]}
        assert program.process.stdin is not None
        program.process.stdin.close()
        began |= {line["began"] for line in program.lines()}
        assert program.end() == 0
        with client.parked(queue) as parked:
            assert [message.error for message in parked] == []
    left = {body for body, _ in left_in(broker, queue)}
    assert began | left == set(bodies)
    assert len(left) > 10


@pytest.mark.parametrize("how", ["run", "iterate", "loop"])
def test_a_consumer_that_an_executor_runs_goes_on_after_the_main_thread(
    broker: Broker, programs: list[Program], how: str
) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    source = """
        from concurrent.futures import ThreadPoolExecutor, thread

        started = threading.Event()

        def handle(msg):
            say(got=msg.text())
            consumer.close()

        def tell_of_the_end():
            while not thread._shutdown:  # set after everything that ends consumers
                time.sleep(0.01)
            say(there=True)

        async def main():
            done = asyncio.Event()

            async def handle(msg):
                say(got=msg.text())
                done.set()

            async with retryrmq.connect(url) as client, client.consume(queue, handle, dlx=True):
                started.set()
                await done.wait()

        def run():
            if HOW == "run":
                consumer.run()
            else:
                for msg in consumer:
                    say(got=msg.text())
                    msg.ack()
                    consumer.close()

        threading.Thread(target=tell_of_the_end, daemon=True).start()
        if HOW == "loop":
            ThreadPoolExecutor().submit(asyncio.run, main())
            started.wait()
        else:
            client = retryrmq.connect_blocking(url)
            consumer = client.consume(queue, handle if HOW == "run" else None, dlx=True)
            consumer.start()
            ThreadPoolExecutor().submit(run)
            while not consumer._dispatcher._consumer_threads:
                time.sleep(0.01)
    """
    program = Program(source.replace("HOW", repr(how)), broker, queue)
    programs.append(program)
    assert program.line() == {"there": True}
    with retryrmq.connect_blocking(broker.url) as client:
        client.publish(queue, "late")
    assert program.line() == {"got": "late"}
    assert program.end() == 0


def test_an_event_loop_of_another_make(broker: Broker, programs: list[Program]) -> None:
    pytest.importorskip("uvloop")
    queue = broker.queue()
    program = Program(
        """
        import uvloop
        app = retryrmq.App(url)

        @app.consume(queue, dlx=True, retry="fixed(100ms, retries=1)")
        async def handle(msg):
            if msg.attempt == 1:
                raise ValueError
            say(loop=type(asyncio.get_running_loop()).__module__, attempt=msg.attempt)
            app.stop()

        async def later():
            async with app:
                await app.publish(queue, "a")
        uvloop.run(later())
        app.run(loop_factory=uvloop.new_event_loop)
        """,
        broker,
        queue,
    )
    programs.append(program)
    assert program.lines() == [{"loop": "uvloop", "attempt": 2}]
    assert program.end() == 0
