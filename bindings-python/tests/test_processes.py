"""Signals, forks, event loops that go away, ends without a goodbye: each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import retryrmq
from conftest import PATIENCE, Broker
from proxy import Proxy, free_port

PRELUDE = """
import asyncio, json, os, signal, sys, threading, time
import retryrmq
url, queue = sys.argv[1:3]
# A shell has what it runs in the background ignore Ctrl-C, and so would this.
signal.signal(signal.SIGINT, signal.default_int_handler)

def say(**line):
    # In one call: a signal handler may say something in the middle of another line, which buffered output does not bear.
    os.write(1, (json.dumps(line) + "\\n").encode())
"""


class Program:
    """A Python program of ours, line by line."""

    def __init__(
        self, source: str, broker: Broker, queue: str, url: str | None = None, stdin: int | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", PRELUDE + textwrap.dedent(source), url or broker.url, queue],
            stdin=stdin,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> Any:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, f"the program ended with {self.process.wait(PATIENCE)} before it said anything more"
        return json.loads(text)

    def lines(self) -> list[Any]:
        assert self.process.stdout is not None
        return [json.loads(text) for text in self.process.stdout]

    def end(self) -> int:
        return self.process.wait(PATIENCE)


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        if program.process.poll() is None:
            program.process.kill()
        program.process.wait()
        assert program.process.stdout is not None
        program.process.stdout.close()


def left_in(broker: Broker, queue: str) -> list[tuple[str, bool]]:
    """What is in the queue, and whether it was delivered before; empties it."""
    with retryrmq.connect_blocking(broker.url) as client, client.consume(queue, dlx=True) as consumer:
        client.publish(queue, "the last one")
        found = []
        for msg in consumer:
            msg.ack()
            if msg.text() == "the last one":
                return found
            found.append((msg.text(), msg.redelivered))
    raise AssertionError


HANDLERS = {
    "async": """
        @app.consume(queue, dlx=True, concurrency=2)
        async def handle(msg):
            say(began=msg.text())
            await asyncio.sleep(0.3)
            say(ended=msg.text())
    """,
    "sync": """
        @app.consume(queue, dlx=True, concurrency=2)
        def handle(msg):
            say(began=msg.text())
            time.sleep(0.3)
            say(ended=msg.text())
    """,
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("how", ["async", "sync"])
def test_the_first_signal_drains(broker: Broker, programs: list[Program], how: str, number: signal.Signals) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    source = "app = retryrmq.App(url)\n" + textwrap.dedent(HANDLERS[how]) + "\napp.run()\nsay(drained=True)\n"
    program = Program(source, broker, queue)
    programs.append(program)
    with retryrmq.connect_blocking(broker.url) as client:
        for body in "abcdef":
            client.publish(queue, body)
    began = [program.line()["began"], program.line()["began"]]
    program.process.send_signal(number)
    rest = program.lines()
    assert program.end() == 0
    ended = [line["ended"] for line in rest if "ended" in line]
    began += [line["began"] for line in rest if "began" in line]
    assert sorted(ended) == sorted(began) and rest[-1] == {"drained": True}
    assert sorted(ended + [body for body, _ in left_in(broker, queue)]) == list("abcdef")


@pytest.mark.parametrize("how", ["async", "sync"])
def test_the_second_signal_stops_at_once(broker: Broker, programs: list[Program], how: str) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    source = "app = retryrmq.App(url)\n" + textwrap.dedent(HANDLERS[how]).replace("0.3", "3600") + "\napp.run()\n"
    program = Program(source, broker, queue)
    programs.append(program)
    with retryrmq.connect_blocking(broker.url) as client:
        client.publish(queue, "a")
    assert program.line() == {"began": "a"}
    program.process.send_signal(signal.SIGTERM)
    program.process.send_signal(signal.SIGTERM)
    while program.process.poll() is None:
        program.process.send_signal(signal.SIGTERM)
        if wait_briefly(program):
            break
    # The last of them may have come when it was stopped already and no longer listened.
    assert program.end() in (128 + signal.SIGTERM, -signal.SIGTERM)
    assert left_in(broker, queue) == [("a", True)]


def test_a_handler_that_holds_up_the_event_loop_is_interrupted(broker: Broker, programs: list[Program]) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    source = """
        app = retryrmq.App(url)

        @app.consume(queue, dlx=True)
        async def handle(msg):
            say(began=msg.text())
            time.sleep(3600)

        app.run()
    """
    program = Program(source, broker, queue)
    programs.append(program)
    with retryrmq.connect_blocking(broker.url) as client:
        client.publish(queue, "a")
    assert program.line() == {"began": "a"}
    while program.process.poll() is None:
        program.process.send_signal(signal.SIGTERM)
        if wait_briefly(program):
            break
    # The last of them may have come when it was stopped already and no longer listened.
    assert program.end() in (128 + signal.SIGTERM, -signal.SIGTERM)
    assert left_in(broker, queue) == [("a", True)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_an_app_drain_that_ends_by_an_error(
    broker: Broker, programs: list[Program], number: signal.Signals
) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    source = """
        import logging
        began, heard = asyncio.Event(), asyncio.Event()

        class Watched(retryrmq.App):
            async def _end(self):
                say(ending=True)
                await super()._end()

        class Late(retryrmq.Consumer):
            async def start(self):
                if self.queue != queue:
                    await began.wait()
                return await super().start()

        class Hear(logging.Handler):
            def emit(self, record):
                if "draining" in record.getMessage():
                    heard.set()

        retryrmq.app.Consumer = Late
        logging.getLogger("retryrmq").addHandler(Hear())
        logging.getLogger("retryrmq").setLevel(logging.INFO)
        app = Watched(url)

        @app.consume(queue, dlx=True)
        async def handle(msg):
            began.set()
            await heard.wait()
            await asyncio.sleep(0.3)
            say(ended=msg.text())

        @app.consume(queue + ".not.there", dlx=True, work_queue="existing")
        async def other(msg): ...

        try:
            app.run()
        except BaseException as error:
            say(error=type(error).__name__)
    """
    with retryrmq.connect_blocking(broker.url) as client:
        client.publish(queue, "a")
    program = Program(source, broker, queue)
    programs.append(program)
    assert program.line() == {"ending": True}
    program.process.send_signal(number)
    ended, error = program.lines()
    assert ended == {"ended": "a"} and error["error"] not in ("SystemExit", "KeyboardInterrupt")
    assert program.end() == 0
    assert left_in(broker, queue) == []


OWN_LOOP = """
    app = retryrmq.App(url)

    @app.consume(queue, dlx=True, retry="fixed(50ms, retries=0)", **OPTIONS)
    async def handle(msg):
        heard_before = signal.getsignal(signal.SIGINT)

        def hear(number, frame):
            say(heard=True)
            heard_before(number, frame)

        signal.signal(signal.SIGINT, hear)
        say(began=msg.text())
        while True:  # it computes
            time.sleep(0.01)

    try:
        RUN
    except KeyboardInterrupt:
        numbers = app.stats()[queue]
        say(failed=numbers.failed, parked=numbers.parked)
"""


@pytest.mark.parametrize("options", ["{}", "{'handler_timeout': '10m'}"], ids=["unlimited", "limited"])
@pytest.mark.parametrize(
    "how", ["asyncio.run(app.serve())", "asyncio.new_event_loop().run_until_complete(app.serve())"]
)
def test_ctrl_c_on_somebodys_own_loop_fails_no_attempt(
    broker: Broker, programs: list[Program], how: str, options: str
) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    program = Program(OWN_LOOP.replace("RUN", how).replace("OPTIONS", options), broker, queue)
    programs.append(program)
    with retryrmq.connect_blocking(broker.url) as client:
        client.publish(queue, "a")
    assert program.line() == {"began": "a"}
    # The first one only cancels the task of `asyncio.run`, which has no turn while the handler computes.
    for _ in range(2 if "asyncio.run" in how and sys.version_info >= (3, 11) else 1):
        program.process.send_signal(signal.SIGINT)
        assert program.line() == {"heard": True}
    assert program.line() == {"failed": 0, "parked": 0}
    assert program.end() == 0
    assert left_in(broker, queue) == [("a", True)]


def test_ctrl_c_ends_the_consumer_and_lets_the_others_finish(broker: Broker, programs: list[Program]) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    source = """
        app = retryrmq.App(url)

        @app.consume(queue, dlx=True, concurrency=2)
        async def handle(msg):
            say(began=msg.text())
            if msg.text() == "slow":
                await asyncio.sleep(0.5)
            else:
                while True:
                    time.sleep(0.01)

        loop = asyncio.new_event_loop()
        serving = loop.create_task(app.serve())
        try:
            loop.run_until_complete(serving)
        except KeyboardInterrupt:
            say(interrupted=True)
        try:
            loop.run_until_complete(serving)
        except retryrmq.ClosedError as error:
            say(error=str(error), acked=app.stats()[queue].acked, failed=app.stats()[queue].failed)
    """
    program = Program(source, broker, queue)
    programs.append(program)
    with retryrmq.connect_blocking(broker.url) as client:
        client.publish(queue, "slow")
        assert program.line() == {"began": "slow"}
        client.publish(queue, "computes")
    assert program.line() == {"began": "computes"}
    program.process.send_signal(signal.SIGINT)
    assert program.line() == {"interrupted": True}
    ended = program.line()
    assert "interrupted by Ctrl-C" in ended["error"] and (ended["acked"], ended["failed"]) == (1, 0)
    assert program.end() == 0
    assert left_in(broker, queue) == [("computes", True)]


@pytest.mark.parametrize("how", ["app", "blocking", "async"])
def test_ctrl_c_ends_waiting_for_a_broker(broker: Broker, programs: list[Program], how: str) -> None:
    source = {
        "app": "app = retryrmq.App(url)\napp.consume(queue, dlx=True)(print)\nconnect = app.run",
        "blocking": "connect = lambda: retryrmq.connect_blocking(url, wait=True)",
        "async": "async def main():\n    await retryrmq.connect(url, wait=True)\nconnect = lambda: asyncio.run(main())",
    }[how]
    source += textwrap.dedent("""
        import logging, retryrmq._native
        class Tell(logging.Handler):
            def emit(self, record):
                say(level=record.levelname, waits="not there yet" in record.getMessage())
        logging.getLogger("retryrmq.client").addHandler(Tell())
        try:
            connect()
        except BaseException as error:
            say(ended=type(error).__name__, left=retryrmq._native.live()["clients"])
    """)
    program = Program(source, broker, "orders", f"amqp://localhost:{free_port()}")
    programs.append(program)
    assert program.line() == {"level": "WARNING", "waits": True}
    program.process.send_signal(signal.SIGINT)
    ended = [line for line in program.lines() if "ended" in line]
    assert ended == [{"ended": "SystemExit" if how == "app" else "KeyboardInterrupt", "left": 0}]
    assert program.end() == 0


HANGING = {
    "plain": "def login():\n    say(asked=True)\n    time.sleep(3600)\n",
    "async": "async def login():\n    say(asked=True)\n    await asyncio.sleep(3600)\n",
}


@pytest.mark.parametrize("login", HANGING)
@pytest.mark.parametrize("how", ["app", "blocking", "async"])
def test_ctrl_c_ends_waiting_for_a_login(broker: Broker, programs: list[Program], how: str, login: str) -> None:
    source = HANGING[login]
    source += {
        "app": "app = retryrmq.App(url, credentials=login)\napp.consume(queue, dlx=True)(print)\nconnect = app.run\n",
        "blocking": "connect = lambda: retryrmq.connect_blocking(url, credentials=login)\n",
        "async": "connect = lambda: asyncio.run(retryrmq.connect(url, credentials=login))\n",
    }[how]
    source += textwrap.dedent("""
        try:
            connect()
        except BaseException as error:
            say(ended=type(error).__name__)
        while retryrmq._native.live()["clients"] or retryrmq._pump.pump()._askers:
            time.sleep(0.01)
        say(left=0)
    """)
    program = Program(source, broker, "orders")
    programs.append(program)
    assert program.line() == {"asked": True}
    program.process.send_signal(signal.SIGINT)
    assert program.line() == {"ended": "SystemExit" if how == "app" else "KeyboardInterrupt"}
    assert program.line() == {"left": 0}
    assert program.end() == 0  # whatever still hangs


@pytest.mark.parametrize("login", HANGING)
def test_ctrl_c_drains_an_app_whose_login_hangs(broker: Broker, programs: list[Program], login: str) -> None:
    queue = broker.queue()
    proxy = Proxy(broker.url)
    hang = HANGING[login].replace(
        "    say(asked=True)\n", "    if not cut:\n        return 'guest', 'guest'\n    say(asked=True)\n"
    )
    source = (
        f"cut = []\n{hang}"
        + """
app = retryrmq.App(url, credentials=login)

@app.consume(queue, dlx=True, drain_timeout="1s")
async def handle(msg):
    cut.append(msg.text())
    say(handled=msg.text())

app.run()
say(drained=True)
"""
    )
    make_queue(broker, queue)
    program = Program(source, broker, queue, proxy.url)
    programs.append(program)
    with retryrmq.connect_blocking(broker.url) as client:
        client.publish(queue, "a")
    assert program.line() == {"handled": "a"}
    proxy.cut()
    assert program.line() == {"asked": True}
    program.process.send_signal(signal.SIGINT)
    # The other connection's question may be asked meanwhile, on a thread of its own.
    assert {"drained": True} in program.lines()
    assert program.end() == 0
    proxy.close()


@pytest.mark.parametrize("how", ["async", "stubborn"])
def test_a_signal_drains_no_longer_than_it_may(broker: Broker, programs: list[Program], how: str) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    program = Program(
        f"""
        app = retryrmq.App(url)

        @app.consume(queue, dlx=True, drain_timeout="300ms")
        async def handle(msg):
            say(began=msg.text())
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    if {how == "async"}:
                        raise

        app.run()
        say(drained=True)
        """,
        broker,
        queue,
    )
    programs.append(program)
    with retryrmq.connect_blocking(broker.url) as client:
        client.publish(queue, "a")
    assert program.line() == {"began": "a"}
    program.process.send_signal(signal.SIGTERM)
    assert program.line() == {"drained": True}
    assert program.end() == 0
    assert left_in(broker, queue) == [("a", True)]


BLOCKING = {
    "run": """
        def handle(msg):
            say(began=msg.text())
            time.sleep(0.5)
            say(ended=msg.text())

        client.consume(queue, handle, dlx=True).run()
    """,
    "iteration": """
        with client.consume(queue, dlx=True) as consumer:
            for msg in consumer:
                say(began=msg.text())
                msg.ack()
                while consumer.stats().acked < 1:
                    time.sleep(0.01)
                say(ended=msg.text())
    """,
}


@pytest.mark.parametrize("how", BLOCKING)
def test_ctrl_c_ends_the_blocking_forms(broker: Broker, programs: list[Program], how: str) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    with retryrmq.connect_blocking(broker.url) as client:
        client.publish(queue, "a")
    source = (
        "client = retryrmq.connect_blocking(url)\ntry:\n"
        + textwrap.indent(textwrap.dedent(BLOCKING[how]), "    ")
        + "\nexcept KeyboardInterrupt:\n    say(interrupted=True)\n"
    )
    program = Program(source, broker, queue)
    programs.append(program)
    assert program.line() == {"began": "a"}
    if how == "iteration":
        assert program.line() == {"ended": "a"}
    program.process.send_signal(signal.SIGINT)
    rest = program.lines()
    assert program.end() == 0
    assert rest[-1] == {"interrupted": True}
    if how == "run":
        assert rest[0] == {"ended": "a"}
    assert left_in(broker, queue) == []


def wait_briefly(program: Program) -> bool:
    try:
        program.process.wait(0.5)
    except subprocess.TimeoutExpired:
        return False
    return True


def make_queue(broker: Broker, queue: str) -> None:
    with retryrmq.connect_blocking(broker.url) as client, client.consume(queue, dlx=True):
        pass


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
    program = Program(source.replace("WHERE", repr(where)), broker, queue, stdin=subprocess.PIPE)
    programs.append(program)
    with retryrmq.connect_blocking(broker.url) as client:
        for number in range(60):
            client.publish(queue, str(number))
        began = {program.line()["began"]}
        assert program.process.stdin is not None
        program.process.stdin.close()
        began |= {line["began"] for line in program.lines()}
        assert program.end() == 0
        with client.parked(queue) as parked:
            assert [message.error for message in parked] == []
    left = {body for body, _ in left_in(broker, queue)}
    assert began | left == {str(number) for number in range(60)}
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
            while not consumer._pump._staying:
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
        patience = time.monotonic() + 10
        while any(retryrmq._native.live().values()) and time.monotonic() < patience:
            time.sleep(0.01)
        say(live=retryrmq._native.live())
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
        patience = time.monotonic() + 10
        while gc.collect() >= 0 and any(retryrmq._native.live().values()) and time.monotonic() < patience:
            time.sleep(0.01)
        say(live=retryrmq._native.live())
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

        for _ in range(20):
            asyncio.run(once())
        gc.collect()
        say(live=retryrmq._native.live(), threads=threading.active_count(), files=len(os.listdir("/proc/self/fd")))
        for _ in range(20):
            asyncio.run(once())
        gc.collect()
        say(live=retryrmq._native.live(), threads=threading.active_count(), files=len(os.listdir("/proc/self/fd")))
        """,
        broker,
        queue,
    )
    programs.append(program)
    before, after = program.lines()
    assert program.end() == 0
    assert before == after
    assert not any(after["live"].values())


if not hasattr(os, "fork"):
    del (
        test_a_fork_is_told_and_can_connect_itself,
        test_a_fork_asks_for_its_own_login,
        test_nothing_of_the_parent_is_used_by_a_fork,
        test_multiprocessing_by_fork_works,
    )
