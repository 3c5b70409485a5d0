"""Forks: of their own accord, and by multiprocessing."""

from __future__ import annotations

import os

import pytest
from conftest import Broker
from program import Program, left_in, make_queue
from proxy import Proxy

if not hasattr(os, "fork"):
    pytest.skip("this system has no fork", allow_module_level=True)


def test_a_fork_is_told_and_can_connect_itself(broker: Broker, programs: list[Program]) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    program = Program(
        """
        client = retryrmq.connect_blocking(url)
        consumer = client.consume(queue, dlx=True).start()
        child = os.fork()
        if child == 0:
            for what in (
                lambda: client.publish(queue, "from a copy"),
                lambda: client.consume(queue).start(),
                lambda: client.parked(queue).__enter__(),
                lambda: client.close(),
            ):
                try:
                    what()
                except retryrmq.ForkedError as error:
                    say(code=error.code)
            del client, consumer
            with retryrmq.connect_blocking(url) as own:
                own.publish(queue, "from the child")
            async def later():
                async with retryrmq.connect(url) as own:
                    await own.publish(queue, "from its loop")
            asyncio.run(later())
            say(child="done")
            sys.exit(0)
        pid, status = os.waitpid(child, 0)
        seen = []
        for msg in consumer:
            seen.append(msg.text())
            msg.ack()
            if len(seen) == 2:
                break
        consumer.close()
        client.publish(queue, "from the parent")
        client.close()
        say(seen=seen, status=status)
        """,
        broker,
        queue,
    )
    programs.append(program)
    lines = program.lines()
    assert program.end() == 0
    assert lines == [{"code": "forked"}] * 4 + [
        {"child": "done"},
        {"seen": ["from the child", "from its loop"], "status": 0},
    ]
    assert [body for body, _ in left_in(broker, queue)] == ["from the parent"]


@pytest.mark.parametrize("login", ["def", "async def"])
def test_a_fork_asks_for_its_own_login(broker: Broker, programs: list[Program], login: str) -> None:
    proxy = Proxy(broker.url)
    program = Program(
        f"""
        import gc
        asked = []

        {login} login():
            asked.append(os.getpid())
            return "guest", "guest"

        client = retryrmq.connect_blocking(url, credentials=login)
        child = os.fork()
        if child == 0:
            try:
                client.close()
            except retryrmq.ForkedError as error:
                say(code=error.code)
            del client
            gc.collect()
            asked.clear()
            with retryrmq.connect_blocking(url, credentials=login):
                say(child=set(asked) == {{os.getpid()}})
            sys.exit(0)
        pid, status = os.waitpid(child, 0)
        before = len(asked)
        say(cut=status)
        while client.reconnects < 2:
            time.sleep(0.01)
        client.close()
        say(parent=len(asked) >= before + 2)
        """,
        broker,
        "orders",
        proxy.url,
    )
    programs.append(program)
    assert program.line() == {"code": "forked"}
    assert program.line() == {"child": True}
    assert program.line() == {"cut": 0}
    proxy.cut()
    assert program.line() == {"parent": True}
    assert program.end() == 0
    proxy.close()


def test_nothing_of_the_parent_is_used_by_a_fork(broker: Broker, programs: list[Program]) -> None:
    queue = broker.queue()
    program = Program(
        """
        import faulthandler
        client = retryrmq.connect_blocking(url)
        consumer = client.consume(queue, lambda msg: msg.json(), dlx=True, retry="fixed(50ms, retries=0)").start()
        for _ in range(3):
            client.publish(queue, "no json")
        while consumer.stats().parked < 3:
            time.sleep(0.01)
        walk = client.parked(queue).__enter__()
        it = next(iter(walk))
        connecting = retryrmq.client.address(url, "", None, False, False, None).begin(None)
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(60, exit=True)
            for name, what in {
                "stats": consumer.stats,
                "metrics": client.metrics_text,
                "reconnects": lambda: client.reconnects,
                "next": lambda: next(iter(walk)),
                "replay": lambda: walk.replay(it),
                "drop": lambda: walk.drop(it),
                "leave": lambda: walk.__exit__(None, None, None),
                "connect": connecting.wait,
                "stop": consumer.stop,
                "close": consumer.close,
            }.items():
                try:
                    say(**{name: repr(what())})
                except retryrmq.RetryRmqError as error:
                    say(**{name: error.code})
            os._exit(0)
        pid, status = os.waitpid(child, 0)
        say(status=status, parked=len(list(walk)))
        walk.__exit__(None, None, None)
        consumer.close()
        client.close()
        """,
        broker,
        queue,
    )
    programs.append(program)
    found = {name: value for line in program.lines() for name, value in line.items()}
    assert program.end() == 0
    names = ("stats", "metrics", "reconnects", "next", "replay", "drop", "leave", "connect", "stop", "close")
    assert found == {**dict.fromkeys(names, "forked"), "status": 0, "parked": 2}


def test_multiprocessing_by_fork_works(broker: Broker, programs: list[Program]) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    program = Program(
        """
        import multiprocessing
        client = retryrmq.connect_blocking(url)

        def work(number):
            with retryrmq.connect_blocking(url) as own:
                own.publish(queue, str(number))
            return number

        with multiprocessing.get_context("fork").Pool(2) as pool:
            say(numbers=pool.map(work, range(4)))
        client.close()
        """,
        broker,
        queue,
    )
    programs.append(program)
    assert program.lines() == [{"numbers": [0, 1, 2, 3]}]
    assert program.end() == 0
    assert sorted(body for body, _ in left_in(broker, queue)) == ["0", "1", "2", "3"]
