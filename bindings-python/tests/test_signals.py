"""Signals: the first drains, the second stops, and waiting ends by Ctrl-C."""

from __future__ import annotations

import signal
import sys
import textwrap
from typing import Any

import pytest
import retryrmq
from conftest import Broker
from program import Program, left_in, make_queue, wait_briefly
from proxy import Proxy, free_port

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
    lines: list[Any] = []
    # On a busy machine the first may end before the second begins.
    while sum("began" in line for line in lines) < 2:
        lines.append(program.line())
    program.process.send_signal(number)
    lines += program.lines()
    assert program.end() == 0
    ended = [line["ended"] for line in lines if "ended" in line]
    began = [line["began"] for line in lines if "began" in line]
    assert sorted(ended) == sorted(began) and lines[-1] == {"drained": True}
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

        retryrmq.client.Consumer = Late
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
            say(ended=type(error).__name__, left=retryrmq._native.live_objects()["clients"])
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
        while retryrmq._native.live_objects()["clients"] or retryrmq._notifications.dispatcher()._credential_providers:
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


RUN = """
        def handle(msg):
            say(began=msg.text())
            time.sleep(0.5)
            say(ended=msg.text())

        client.consume(queue, handle, dlx=True).run()
    """

BLOCKING = {
    "run": RUN,
    "run, before it waits": """
        start = retryrmq.BlockingConsumer.start

        def start_slowly(consumer):
            start(consumer)
            time.sleep(60)

        retryrmq.BlockingConsumer.start = start_slowly
    """
    + RUN,
    "run, while a thread starts": """
        begin = threading.Thread.start

        def start_slowly(thread):
            begin(thread)
            if thread.name == f"retryrmq-{queue}":
                try:
                    time.sleep(60)
                finally:
                    raise RuntimeError("release unlocked lock")

        threading.Thread.start = start_slowly
    """
    + RUN,
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
    if how != "iteration":
        assert rest[0] == {"ended": "a"}
    assert left_in(broker, queue) == []
