"""Programs under gevent and eventlet: nothing hangs, and no wait for the library holds up other greenlets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import retryrmq
from conftest import PATIENCE, Broker
from program import Program, make_queue

PATCHES = {
    "gevent": "\nfrom gevent import monkey; monkey.patch_all()\n",
    "eventlet": "\nimport warnings; warnings.simplefilter('ignore')\nimport eventlet; eventlet.monkey_patch()\n",
}
#: A greenlet that counts, as long as nothing holds it up.
TICKING = """
ticks = []

def tick():
    while True:
        ticks.append(1)
        time.sleep(0.001)

threading.Thread(target=tick, daemon=True).start()

def goes_on():
    # Until it has run again. Nothing here waits in the library, so that only the greenlets' turns count.
    before = len(ticks)
    while len(ticks) < before + 2:
        time.sleep(0.001)
"""


@pytest.fixture(params=list(PATCHES))
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def started(
    source: str, library: str, broker: Broker, queue: str, programs: list[Program], after_import: bool = False
) -> Program:
    patch = PATCHES[library]
    source = (patch if after_import else "") + TICKING + source
    program = Program(source, broker, queue, first="" if after_import else patch)
    programs.append(program)
    return program


@pytest.mark.parametrize("after_import", [False, True], ids=["before", "after"])
def test_threads_that_are_greenlets_publish_and_consume(
    broker: Broker, library: str, after_import: bool, programs: list[Program]
) -> None:
    source = """
from _thread import get_native_id
seen, events, threads = [], [], set()

def handle(msg):
    threads.add(get_native_id())
    seen.append(msg.attempt)
    time.sleep(0.001)
    if msg.attempt == 1:
        raise ValueError("not yet")

def tell(event):
    threads.add(get_native_id())
    events.append(event)

with retryrmq.connect_blocking(url) as client:
    with client.consume(queue, handle, dlx=True, concurrency=3, retry="fixed(50ms, retries=3)", on_event=tell) as consumer:
        waited = len(ticks)
        for number in range(100):
            client.publish(queue, str(number))
        waited = len(ticks) - waited
        while consumer.stats().acked < 100:
            time.sleep(0.01)
    with client.consume(queue, dlx=True) as plain:
        client.publish(queue, "by hand")
        for msg in plain:
            say(text=msg.text())
            msg.ack()
            break
say(seen=sorted(seen), events=len(events), waited=waited > 0, native=threads == {get_native_id()})
"""
    program = started(source, library, broker, broker.queue(), programs, after_import)
    assert program.line() == {"text": "by hand"}
    assert program.line() == {"seen": [1] * 100 + [2] * 100, "events": 100, "waited": True, "native": True}
    assert program.end() == 0


def test_greenlets_get_batches(broker: Broker, library: str, programs: list[Program]) -> None:
    source = """
seen = []

def around(messages, call_next):
    return call_next(messages)

def handle(messages):
    goes_on()
    seen.extend(msg.text() for msg in messages)
    return [retryrmq.Park("no") if msg.text() == "1" else None for msg in messages]

options = {"batch": 3, "batch_wait": "50ms", "concurrency": 2, "middleware": [around]}
with retryrmq.connect_blocking(url) as client:
    with client.consume(queue, handle, dlx=True, **options) as consumer:
        for number in range(7):
            client.publish(queue, str(number))
        while consumer.stats().acked + consumer.stats().parked < 7:
            time.sleep(0.01)
        say(seen=sorted(seen), parked=consumer.stats().parked)
"""
    program = started(source, library, broker, broker.queue(), programs)
    assert program.line() == {"seen": [str(number) for number in range(7)], "parked": 1}
    assert program.end() == 0


@pytest.mark.parametrize("after_import", [False, True], ids=["before", "after"])
def test_an_event_loop_in_a_greenlet_serves_an_app(
    broker: Broker, library: str, after_import: bool, programs: list[Program]
) -> None:
    source = """
app = retryrmq.App(url)
seen = []

@app.consume(queue, dlx=True, retry="fixed(50ms, retries=3)", on_event=lambda event: say(event=type(event).__name__))
async def handle(msg):
    seen.append(msg.attempt)
    if msg.attempt == 1:
        raise ValueError("not yet")
    say(seen=seen)

@app.consume(queue + ".def", dlx=True)
def sync(msg):
    app.blocking.publish(queue, msg.body)

async def main():
    serving = asyncio.ensure_future(app.serve())
    while len(app.stats()) < 2:
        await asyncio.sleep(0.01)
    await app.publish(queue + ".def", "a")
    await serving

def end(*_):
    app.stop()

signal.signal(signal.SIGTERM, end)
asyncio.run(main())
say(ended=True)
"""
    program = started(source, library, broker, broker.queue(), programs, after_import)
    # A listener is told beside the handlers.
    told = [program.line(), program.line()]
    assert {"event": "Retried"} in told and {"seen": [1, 2]} in told
    program.process.send_signal(signal.SIGTERM)
    assert program.line() == {"ended": True}
    assert program.end() == 0


def test_an_app_runs_until_a_signal(broker: Broker, library: str, programs: list[Program]) -> None:
    source = """
app = retryrmq.App(url)

@app.consume(queue, dlx=True)
def handle(msg):
    say(begun=True)
    goes_on()
    say(handled=msg.text())

app.run()
say(ended=True)
"""
    queue = broker.queue()
    make_queue(broker, queue)
    with retryrmq.connect_blocking(broker.url) as client:
        client.publish(queue, "a")
    program = started(source, library, broker, queue, programs)
    assert program.line() == {"begun": True}
    program.process.send_signal(signal.SIGTERM)
    assert program.line() == {"handled": "a"}
    assert program.line() == {"ended": True}
    assert program.end() == 0


def test_a_greenlet_that_waits_for_a_broker_holds_up_no_other(
    broker: Broker, library: str, programs: list[Program]
) -> None:
    source = """
def login():
    goes_on()  # while the main greenlet waits for this
    return "guest", "guest"

connected = retryrmq.connect_blocking(url, credentials=login)
say(connected=connected.healthy())
outcome = []

def connect():
    try:
        retryrmq.connect_blocking("amqp://127.0.0.1:1", wait=True)
    except BaseException as error:
        outcome.append(type(error).__name__)
        raise

if "gevent" in sys.modules:
    import gevent
    waiting = gevent.spawn(connect)
    goes_on()
    waiting.kill()
else:
    waiting = eventlet.spawn(connect)
    goes_on()
    waiting.kill()
say(outcome=outcome)
# Neither the client nor the attempt is closed.
"""
    program = started(source, library, broker, broker.queue(), programs)
    assert program.line() == {"connected": True}
    assert program.line() == {"outcome": ["GreenletExit"]}
    assert program.end() == 0


def test_handlers_past_their_timeout_are_replaced(broker: Broker, library: str, programs: list[Program]) -> None:
    source = """
def handle(msg):
    if msg.attempt == 1:
        threading.Event().wait()
    say(attempt=msg.attempt)

client = retryrmq.connect_blocking(url)
consumer = client.consume(queue, handle, dlx=True, handler_timeout="1s", retry="fixed(50ms, retries=20)").start()
client.publish(queue, "a")
while not consumer.stats().acked:
    time.sleep(0.01)
consumer.close()
# The client is not closed.
"""
    program = started(source, library, broker, broker.queue(), programs)
    assert program.line()["attempt"] > 1
    program.lines()  # on a busy machine another attempt may be late, too
    assert program.end() == 0


def test_greenlets_that_connect_at_once_wait_for_one_another(
    broker: Broker, library: str, programs: list[Program]
) -> None:
    source = """
def login():
    goes_on()  # whoever waits for this must not hold up the others
    return "guest", "guest"

healthy = []

def connect():
    with retryrmq.connect_blocking(url, credentials=login) as client:
        healthy.append(client.healthy())

# Not by threads, whose start waits until each of them has begun.
for _ in range(5):
    sys.modules["gevent" if "gevent" in sys.modules else "eventlet"].spawn(connect)
while len(healthy) < 5:
    time.sleep(0.01)
say(healthy=healthy)
"""
    program = started(source, library, broker, broker.queue(), programs)
    assert program.line() == {"healthy": [True] * 5}
    assert program.end() == 0


@pytest.mark.parametrize("where", ["handler", "limited", "listener", "dispatcher"])
def test_ctrl_c_is_raised_in_the_main_greenlet(
    broker: Broker, library: str, where: str, programs: list[Program]
) -> None:
    source = """
def interrupt():
    # As by the terminal: Python raises it in the greenlet that runs now.
    os.kill(os.getpid(), signal.SIGINT)
    time.monotonic()

seen, interrupted = [], False

def handle(msg):
    seen.append(msg.attempt)
    if where in ("handler", "limited") and len(seen) == 1:
        interrupt()
    if where == "listener" and msg.attempt == 1:  # an event
        raise ValueError("not yet")

class Timed:
    was_here = False

    def check_timeouts(self):
        if not self.was_here:
            self.was_here = True
            interrupt()

client = retryrmq.connect_blocking(url)
limit = "10m" if where == "limited" else None
options = {"dlx": True, "handler_timeout": limit, "retry": "fixed(50ms, retries=3)"}
consumer = client.consume(queue, handle, on_event=lambda event: interrupted or interrupt(), **options).start()
try:
    if where == "dispatcher":
        from retryrmq import _notifications
        timed = Timed()
        _notifications.dispatcher().watch_timeouts(timed, 1.0)
    client.publish(queue, "a")
    while True:
        time.sleep(0.01)
except KeyboardInterrupt:
    interrupted = True
    say(interrupted=True)
client.publish(queue, "b")
while consumer.stats().acked < 2:
    time.sleep(0.01)
consumer.close()
say(seen=sorted(seen))
client.close()
"""
    program = started(f"where = {where!r}\n" + source, library, broker, broker.queue(), programs)
    assert program.line() == {"interrupted": True}
    assert program.line() == {"seen": {"listener": [1, 1, 2, 2], "dispatcher": [1, 1]}.get(where, [1, 1, 1])}
    assert program.end() == 0


def test_a_process_without_file_descriptors_is_told_so_and_tries_again(
    broker: Broker, library: str, programs: list[Program]
) -> None:
    source = """
import resource

goes_on()  # what the greenlets themselves need is open then
most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, most[1]))
try:
    retryrmq.connect_blocking(url)
except retryrmq.RetryRmqError as error:
    say(error=str(error))
resource.setrlimit(resource.RLIMIT_NOFILE, most)
with retryrmq.connect_blocking(url) as client:
    say(healthy=client.healthy())
"""
    program = started(source, library, broker, broker.queue(), programs)
    assert "greenlets can wait for: Too many open files" in program.line()["error"]
    assert program.line() == {"healthy": True}
    assert program.end() == 0


def test_patching_after_the_first_connection_is_an_error(broker: Broker, library: str, programs: list[Program]) -> None:
    source = (
        "client = retryrmq.connect_blocking(url)"
        + PATCHES[library]
        + """
for call in (lambda: client.publish(queue, "a"), lambda: retryrmq.connect_blocking(url)):
    try:
        call()
    except retryrmq.RetryRmqError as error:
        say(error=str(error))
"""
    )
    program = Program(source, broker, broker.queue())
    programs.append(program)
    for _ in range(2):
        assert "before the first connection" in program.line()["error"]
    assert program.end() == 0


def test_a_child_connects_again_and_its_parent_goes_on(broker: Broker, library: str, programs: list[Program]) -> None:
    source = """
client = retryrmq.connect_blocking(url)
consumer = client.consume(queue, lambda msg: say(handled=msg.text()), dlx=True).start()
child = os.fork()
if not child:
    goes_on()  # with the greenlets of the parent
    try:
        client.publish(queue, "a")
    except retryrmq.ForkedError:
        say(forked=True)
    with retryrmq.connect_blocking(url) as own:
        own.publish(queue, "of the child")
    os._exit(0)
os.waitpid(child, 0)
client.publish(queue, "of the parent")
while consumer.stats().acked < 2:
    time.sleep(0.01)
consumer.close()
client.close()
"""
    program = started(source, library, broker, broker.queue(), programs)
    assert program.line() == {"forked": True}
    assert [program.line()["handled"] for _ in range(2)] == ["of the child", "of the parent"]
    assert program.end() == 0


def test_gevents_native_threads_publish(broker: Broker, programs: list[Program]) -> None:
    source = """
import gevent

with retryrmq.connect_blocking(url) as client:
    with client.consume(queue, dlx=True) as consumer:
        gevent.get_hub().threadpool.apply(client.publish, (queue, "a"))
        for msg in consumer:
            msg.ack()
            say(text=msg.text())
            break
"""
    program = started(source, "gevent", broker, broker.queue(), programs)
    assert program.line() == {"text": "a"}
    assert program.end() == 0


WEB = """
import os, threading
import retryrmq

client = None
connecting = threading.Lock()

def api(environ, start_response):
    global client
    with connecting:
        if client is None:
            client = retryrmq.connect_blocking(os.environ["RETRYRMQ_URL"])
    client.publish(os.environ["QUEUE"], environ["PATH_INFO"])
    start_response("202 Accepted", [])
    return [b"published"]
"""


@pytest.mark.parametrize("worker", ["sync", "gthread", "gevent"])
def test_a_web_service_of_gunicorn_publishes(broker: Broker, worker: str, tmp_path: Path) -> None:
    queue = broker.queue()
    make_queue(broker, queue)
    (tmp_path / "web.py").write_text(WEB)
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "-k", worker, "-b", "127.0.0.1:0", "--timeout", "60", "web:api"],
        cwd=tmp_path,
        env={**os.environ, "RETRYRMQ_URL": broker.url, "QUEUE": queue},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        address = next(line.split()[-2] for line in server.stderr if "Listening at" in line)
        for path in ("/a", "/b"):
            with urllib.request.urlopen(address + path, timeout=PATIENCE) as answer:
                assert answer.read() == b"published"
        server.terminate()
        rest = server.stderr.read()
        assert server.wait(PATIENCE) == 0 and "CRITICAL" not in rest and "ERROR" not in rest, rest
    finally:
        server.kill()
        server.wait()
        server.stderr.close()
    with retryrmq.connect_blocking(broker.url) as client, client.consume(queue, dlx=True) as consumer:
        found = []
        for msg in consumer:
            found.append(msg.text())
            msg.ack()
            if len(found) == 2:
                break
    assert found == ["/a", "/b"]
