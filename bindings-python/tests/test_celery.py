"""retryrmq.celery: real workers, in processes of their own."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest
import retryrmq
from conftest import PATIENCE, Broker, eventually
from proxy import Proxy

pytest.importorskip("celery")
# Each starts several programs, which take long to import on a busy machine.
pytestmark = pytest.mark.timeout(300)
HERE = Path(__file__).parent
#: Each starts several workers, which takes long.
thorough = pytest.mark.skipif(os.environ.get("RETRYRMQ_TEST_MATRIX") == "assigned", reason="only in make test-all")
#: The arguments of a queue that takes nothing.
FULL = {"x-max-length": 0, "x-overflow": "reject-publish"}
NOT_YET = "a copy is not stored yet"
logging.getLogger("pika").setLevel(logging.CRITICAL)


class OwnBroker(Broker):
    """A broker for one test alone, which may kill it."""

    def __init__(self, control: str, version: str) -> None:
        program = shlex.split(control)[0]
        self._control = [program, "--instance", f"celery-{uuid.uuid4().hex[:8]}"]
        self._series = ".".join(version.split(".")[:2])
        self("start")
        url, management, *_ = self("url").split()
        super().__init__(version, url, management)

    def __call__(self, *command: str) -> str:
        done = subprocess.run([*self._control, *command, self._series], capture_output=True, text=True, check=True)
        return done.stdout

    def purge(self) -> None:
        subprocess.run([*self._control, "purge"], capture_output=True, check=True)


class CeleryVhost:
    """A virtual host with workers in it."""

    def __init__(self, broker: Broker, folder: Path, **settings: Any) -> None:
        self.broker, self.folder = broker, folder
        self.name = f"celery-{uuid.uuid4().hex[:12]}"
        broker.api("PUT", f"/vhosts/{self.name}", {})
        broker.api("PUT", f"/permissions/{self.name}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        self.url = f"amqp://{urlsplit(broker.url).netloc}/{self.name}"
        self.settings = settings
        self.workers: list[subprocess.Popen[bytes]] = []

    def environment(self, **settings: Any) -> dict[str, str]:
        return {
            **os.environ,
            "CELERY_BROKER": self.url,
            "CELERY_LOG": str(self.folder),
            "CELERY_SETTINGS": json.dumps({**self.settings, **settings}),
            "PYTHONPATH": str(HERE),
        }

    def worker(self, *options: str, **settings: Any) -> subprocess.Popen[bytes]:
        """A worker that consumes."""
        before = self.look("work")[1]
        with open(self.folder / "output", "ab") as output:
            command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-c", "2", "--without-mingle"]
            worker = subprocess.Popen(
                [*command, "-n", uuid.uuid4().hex, "--without-gossip", "-l", "INFO", *options],
                env=self.environment(**settings),
                cwd=HERE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.workers.append(worker)
        eventually("the worker consumes", lambda: self.look("work")[1] > before or worker.poll() is not None)
        assert worker.poll() is None, self.output()
        return worker

    def kill(self) -> None:
        """SIGKILL to all processes of all workers; returns when the broker knows."""
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        self.workers.clear()
        eventually("the broker knows", lambda: not self.look("work")[1])

    def stop(self, worker: subprocess.Popen[bytes]) -> None:
        """A warm shutdown."""
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
        self.workers.remove(worker)

    def run(self, code: str, **settings: Any) -> str:
        """Runs code of a publisher, which has the application; returns what it prints."""
        done = subprocess.run(
            [sys.executable, "-c", f"import datetime, time\nfrom celery_tasks import *\n{code}"],
            env=self.environment(**settings),
            cwd=HERE,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def output(self) -> str:
        path = self.folder / "output"
        return path.read_text(errors="replace")[-8000:] if path.exists() else ""

    def runs(self, task: str | None = None) -> list[dict[str, Any]]:
        path = self.folder / "runs"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if task in (None, line["task"])]

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()

    def look(self, queue: str) -> tuple[int, int]:
        """Ready messages and consumers."""
        try:
            with self.channel() as channel:
                method = channel.queue_declare(queue, passive=True).method
                return method.message_count, method.consumer_count
        except pika.exceptions.ChannelClosedByBroker:
            return 0, 0

    def waiting(self) -> dict[str, int]:
        """How many messages wait in each waiting queue."""
        names = [queue["name"] for queue in self.broker.api("GET", f"/queues/{self.name}?columns=name")]
        depths = {name: self.look(name)[0] for name in names if ".retry." in name}
        return {name: depth for name, depth in depths.items() if depth}

    def all_parked(self) -> list[Any]:
        if not self.exists("work.parked"):
            return []
        with retryrmq.connect_blocking(self.url) as client, client.parked("work") as parked:
            return list(parked)

    def ended(self) -> set[str]:
        """The tasks `fails` that came to their end: done, or parked."""
        done = {run["id"] for run in self.runs("fails") if run["retries"] >= run["note"]}
        return done | {it.message.headers["id"] for it in self.all_parked()}

    def parked(self) -> dict[str, Any]:
        """The parked messages, by task."""
        return {it.message.headers.get("task", "?"): it for it in self.all_parked()}

    def exists(self, queue: str) -> bool:
        return any(it["name"] == queue for it in self.broker.api("GET", f"/queues/{self.name}?columns=name"))

    def parked_in_the_end(self, *tasks: str) -> dict[str, Any]:
        def all_of_them() -> dict[str, Any] | None:
            found = self.parked()
            return found if set(tasks) <= found.keys() else None

        try:
            return eventually(f"{tasks} are parked", all_of_them) or {}
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.parked().keys()} are; {self.output()}") from None

    def is_empty(self) -> bool:
        """Whether nothing is ready or waits. Something may run."""
        return self.look("work")[0] == 0 and not self.waiting()


@pytest.fixture
def vhost(every_broker: Broker) -> Iterator[CeleryVhost]:
    with tempfile.TemporaryDirectory() as folder:
        found = CeleryVhost(every_broker, Path(folder))
        try:
            yield found
        finally:
            found.kill()
            every_broker.api("DELETE", f"/vhosts/{found.name}")


def test_tasks_that_finally_fail_are_parked_with_their_traceback(vhost: CeleryVhost) -> None:
    worker = vhost.worker()
    vhost.run(
        "auto.delay(); fatal.apply_async((7,), compression='zlib'); rejects.delay(); ignores.delay(); slow.delay(); soft.delay()"
    )
    vhost.run("app.send_task('unknown', ('a',), {'b': 1})")
    with vhost.channel() as channel:
        channel.basic_publish("", "work", b"no task", pika.BasicProperties(content_type="application/json"))
        properties = pika.BasicProperties(
            content_type="application/json", content_encoding="utf-8", headers={"task": "ok", "id": "1", "lang": "py"}
        )
        channel.basic_publish("", "work", b"{", properties)
    found = vhost.parked_in_the_end("auto", "fatal", "rejects", "slow", "soft", "unknown", "ok", "?")
    assert {task: (it.reason, it.error_type) for task, it in found.items()} == {
        "auto": ("exhausted", "ValueError"),
        "fatal": ("fatal", "KeyError"),
        "rejects": ("requested", "Reject"),
        "slow": ("fatal", "TimeLimitExceeded"),
        "soft": ("fatal", "SoftTimeLimitExceeded"),
        "unknown": ("undecodable", "LookupError"),
        "ok": ("undecodable", "DecodeError"),
        "?": ("undecodable", found["?"].error_type),
    }
    assert [run["retries"] for run in vhost.runs("auto")] == [0, 1, 2]
    assert [entry.attempt for entry in found["auto"].message.history] == [1, 2, 3]
    assert found["auto"].message.attempt == 3
    fatal = found["fatal"]
    assert 'raise KeyError(f"order {order}")' in fatal.stack and fatal.error == "'order 7'"
    assert fatal.message.headers["argsrepr"] == "(7,)" and fatal.message.message_id == fatal.message.headers["id"]
    assert (vhost.folder / "watched").read_text() == "fatal\n"
    assert found["unknown"].message.headers["kwargsrepr"] == "{'b': 1}"
    assert found["ok"].message.body == b"{"
    # Celery's own results are what they are without us.
    states = vhost.run(f"print(app.AsyncResult({fatal.message.message_id!r}).state)")
    assert states.split() == ["FAILURE"]
    # Its count goes back to the start, and it runs again.
    with retryrmq.connect_blocking(vhost.url) as client, client.parked("work") as parked:
        for it in parked:
            if it.message.headers.get("task") in ("auto", "fatal"):
                parked.replay(it)
    eventually("it can be read", lambda: len(vhost.runs("fatal")) == 2)
    eventually("it runs again", lambda: [run["retries"] for run in vhost.runs("auto")] == [0, 1, 2] * 2)
    vhost.parked_in_the_end("auto")
    eventually("the original is acknowledged", vhost.is_empty)
    vhost.stop(worker)
    assert vhost.is_empty()
    assert len(vhost.runs("ignores")) == 1


@pytest.mark.parametrize(
    ("pool", "queue_type"),
    [
        ("prefork", "quorum"),
        *(
            pytest.param(pool, queue_type, marks=thorough)
            for pool, queue_type in (
                ("prefork", "classic"),
                ("threads", "quorum"),
                ("threads", "classic"),
                ("gevent", "quorum"),
                ("gevent", "classic"),
                ("eventlet", "quorum"),
                ("solo", "quorum"),
            )
        ),
    ],
)
def test_a_retry_waits_in_the_broker(vhost: CeleryVhost, pool: str, queue_type: str) -> None:
    vhost.settings["queue_type"] = queue_type
    vhost.worker("-P", pool)
    vhost.run("fails.delay(1, 5); fatal.delay(1)")
    assert eventually("it waits", vhost.waiting) == {"work.retry.5000": 1}
    assert len(vhost.runs("fails")) == 1
    vhost.parked_in_the_end("fatal")
    vhost.kill()
    vhost.worker("-P", pool)
    first, second = eventually("it comes back", lambda: len(runs := vhost.runs("fails")) == 2 and runs)
    assert second["retries"] == 1 and second["eta"] is None and second["at"] - first["at"] >= 5
    eventually("all is done", vhost.is_empty)


def test_a_countdown_waits_in_the_broker_from_the_start(vhost: CeleryVhost) -> None:
    vhost.run("""
ok.apply_async(("countdown",), countdown=2)
ok.apply_async(("eta",), eta=datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=2))
ok.apply_async(("a year",), countdown=365 * 86400 - 60)
ok.apply_async(("two years",), countdown=730 * 86400, expires=900 * 86400)
ok.apply_async(("past",), eta=datetime.datetime.now() - datetime.timedelta(days=1))
ok.si("signature").set(countdown=2).apply_async()
""")
    eventually("three are due", lambda: vhost.look("work")[0] == 4)
    assert sum(vhost.waiting().values()) == 2
    vhost.worker()
    runs = eventually("they run", lambda: len(found := vhost.runs()) == 4 and found)
    assert sorted((run["note"], run["eta"] is None) for run in runs) == [
        ("countdown", True),
        ("eta", True),
        ("past", False),
        ("signature", True),
    ]


@thorough
def test_a_task_with_an_eta_of_another_publisher_is_sent_to_wait(vhost: CeleryVhost) -> None:
    vhost.worker()
    vhost.run("ok.apply_async((1,), countdown=4)", is_set_up=False)
    eventually("it waits in the broker", lambda: vhost.waiting() == {"work.retry.4000": 1})
    vhost.kill()
    assert sum(vhost.waiting().values()) + vhost.look("work")[0] == 1
    vhost.worker()
    (run,) = eventually("it runs", vhost.runs)
    assert run["eta"] is None
    eventually("all is done", vhost.is_empty)


def test_through_a_topic_exchange_a_retry_comes_back_to_its_own_queue(vhost: CeleryVhost) -> None:
    vhost.settings["exchange_type"] = "topic"
    vhost.worker()
    with vhost.channel() as channel:
        channel.queue_declare("audit", durable=True)
        channel.queue_bind("audit", "work", "#")
    vhost.run("fails.delay(2, 0.2); ok.apply_async((1,), countdown=1)")
    eventually("it is done", lambda: len(vhost.runs("fails")) == 3 and vhost.runs("ok"))
    # One of each, and neither a retry nor a copy that waited.
    assert vhost.look("audit")[0] == 2


@thorough
def test_what_is_acknowledged_before_it_runs_is_parked_as_well(vhost: CeleryVhost) -> None:
    vhost.settings["task_acks_late"] = False
    worker = vhost.worker()
    vhost.run("fatal.delay(1); auto.delay(); dies.delay(); slow.delay()")
    found = vhost.parked_in_the_end("fatal", "auto", "dies", "slow")
    assert {task: it.reason for task, it in found.items()} == {
        "fatal": "fatal",
        "auto": "exhausted",
        "dies": "fatal",
        "slow": "fatal",
    }
    vhost.stop(worker)
    assert vhost.is_empty()


@thorough
def test_a_task_that_kills_its_process_is_parked_in_the_end_with_a_result(vhost: CeleryVhost) -> None:
    vhost.worker(setup={"crash_limit": 3})
    said = vhost.run("""
from celery import chord
in_chord = chord([dies.s(), number.s(1)])(total.s())
while not (in_chord.parent[0].ready() and in_chord.ready()):
    time.sleep(0.05)
print(in_chord.parent[0].state, type(in_chord.parent[0].result).__name__)
print(in_chord.state, type(in_chord.result).__name__)
""")
    assert said.splitlines() == ["FAILURE WorkerLostError", "FAILURE ChordError"]
    found = vhost.parked_in_the_end("dies")
    assert (found["dies"].reason, found["dies"].error_type) == ("delivery-limit", "WorkerLostError")
    assert len(vhost.runs("dies")) == 3
    assert (vhost.folder / "failures").read_text().splitlines().count("dies WorkerLostError") == 1


@thorough
def test_a_task_that_kills_its_whole_worker_is_parked_in_the_end_with_a_result(vhost: CeleryVhost) -> None:
    vhost.settings["setup"] = {"crash_limit": 3}
    vhost.run("takes.delay(300)")
    for crash in range(3):
        vhost.worker()
        eventually("it runs", lambda crash=crash: len(vhost.runs()) == crash + 1)
        vhost.kill()
    worker = vhost.worker()
    takes = vhost.parked_in_the_end("takes")["takes"]
    assert (takes.reason, takes.error_type) == ("delivery-limit", "WorkerLostError")
    assert takes.error == "it was delivered 3 times without an end"
    vhost.stop(worker)
    assert len(vhost.runs()) == 3 and vhost.is_empty()
    assert vhost.run(f"print(app.AsyncResult({takes.message.message_id!r}).state)").split() == ["FAILURE"]
    assert (vhost.folder / "failures").read_text() == "takes WorkerLostError\n"


def test_a_malformed_task_does_not_end_the_worker(vhost: CeleryVhost) -> None:
    worker = vhost.worker()
    broken = [
        ({"task": "ok"}, b"[[], {}, {}]"),
        *(({"task": "ok", "id": str(n)}, body) for n, body in enumerate((b"[]", b"7", b"null", b"[1, 2, 3]"))),
        ({"task": ["ok"], "id": "list"}, b"[[], {}, {}]"),
        ({"task": "ok", "id": "expires", "expires": "never"}, b"[[], {}, {}]"),
        ({"task": "ok", "id": "eta", "eta": 7}, b"[[], {}, {}]"),
    ]
    with vhost.channel() as channel:
        for headers, body in broken:
            properties = pika.BasicProperties(
                content_type="application/json", content_encoding="utf-8", headers={"lang": "py", **headers}
            )
            channel.basic_publish("", "work", body, properties)
    vhost.run("ok.delay('after')")
    eventually("it works", lambda: [run["note"] for run in vhost.runs("ok")][-1:] == ["after"])
    # Celery runs `[1, 2, 3]`, which fails.
    eventually("all are parked", lambda: len(vhost.all_parked()) == len(broken))
    assert {it.reason for it in vhost.all_parked()} <= {"undecodable", "fatal"}
    eventually("they are acknowledged", vhost.is_empty)
    vhost.stop(worker)
    assert vhost.is_empty()


def test_a_worker_that_ends_gives_back_what_it_has_not_begun(vhost: CeleryVhost) -> None:
    worker = vhost.worker("-c", "1")
    vhost.run("for n in range(20): takes.delay(1, n)")  # more than the worker handles until it is told to end
    eventually("one runs", vhost.runs)
    vhost.stop(worker)
    with vhost.channel() as channel:
        left = []
        while (got := channel.basic_get("work"))[0]:
            left.append(got[1].headers)
    assert len(left) + len(vhost.runs()) == 20 and left
    if tuple(map(int, vhost.broker.version.split(".")[:2])) >= (4, 3):  # older brokers count every delivery
        assert not any("x-delivery-count" in headers for headers in left)


@thorough
def test_a_task_that_asks_to_be_requeued_is_no_crash(vhost: CeleryVhost) -> None:
    if tuple(map(int, vhost.broker.version.split(".")[:2])) < (4, 3):
        pytest.skip("older brokers count every delivery")
    vhost.worker(setup={"crash_limit": 3})
    vhost.run("requeues.delay(8)")
    eventually("it ends", lambda: len(vhost.runs("requeues")) == 8 and vhost.is_empty())
    assert not vhost.all_parked()


def test_queues_that_go_with_their_worker_get_no_queues_of_ours(vhost: CeleryVhost) -> None:
    vhost.settings["has_broadcast"] = True
    vhost.worker()
    vhost.run("""
fatal.apply_async((1,), queue="news")
fails.apply_async((1, 1), queue="news")
ok.apply_async(("news",), countdown=1, queue="news")
""")
    eventually("they are done", lambda: len(vhost.runs("fails")) == 2 and vhost.runs("ok") and vhost.runs("fatal"))
    names = [queue["name"] for queue in vhost.broker.api("GET", f"/queues/{vhost.name}?columns=name")]
    assert not [name for name in names if ".retry." in name or name.endswith(".parked")]


def test_canvas_and_results_are_what_they_are_without_us(vhost: CeleryVhost) -> None:
    vhost.worker()
    said = vhost.run("""
from celery import chain, chord, group
done = chord([number.s(1), number.s(2, fails=2), number.s(3).set(countdown=1)])(total.s())
print(done.get(timeout=60))
print(chain(number.si(4, fails=1), total.si([1, 2])).apply_async(countdown=1).get(timeout=60))
waits = fails.delay(1, 3)
while waits.state != "RETRY":
    time.sleep(0.05)
print(waits.state, repr(waits.result), waits.get(timeout=60), waits.state)
""")
    assert said.splitlines() == ["6", "3", "RETRY ValueError('not yet, 1 times') done SUCCESS"]


def test_an_original_stays_until_its_copy_is_stored(vhost: CeleryVhost) -> None:
    with vhost.channel() as channel:
        channel.queue_declare("work.parked", durable=True, arguments=FULL)
    vhost.worker()
    vhost.run("fatal.delay(1)")
    eventually("it cannot be parked", lambda: NOT_YET in vhost.output())
    vhost.kill()
    eventually("it comes back", lambda: vhost.look("work")[0] == 1)
    with vhost.channel() as channel:
        channel.queue_delete("work.parked")
    vhost.worker()
    vhost.parked_in_the_end("fatal")
    eventually("it is acknowledged", vhost.is_empty)


@pytest.mark.parametrize("acks_late", [True, pytest.param(False, marks=thorough)])
def test_a_warm_shutdown_waits_for_copies_and_acknowledges_their_originals(vhost: CeleryVhost, acks_late: bool) -> None:
    with vhost.channel() as channel:
        channel.queue_declare("work.parked", durable=True, arguments=FULL)
    worker = vhost.worker(task_acks_late=acks_late)
    vhost.run("[fails.delay(9, 30, 0) for _ in range(3)]")
    eventually("they cannot be parked", lambda: len(vhost.runs()) == 3 and NOT_YET in vhost.output())
    worker.send_signal(signal.SIGTERM)
    eventually("it ends", lambda: "Warm shutdown" in vhost.output())
    with vhost.channel() as channel:
        channel.queue_delete("work.parked")
    vhost.stop(worker)
    eventually("they are parked", lambda: vhost.look("work.parked")[0] == 3)
    assert vhost.look("work")[0] == 0


@pytest.mark.parametrize("acks_late", [True, pytest.param(False, marks=thorough)])
def test_what_is_not_stored_at_the_end_is_not_acknowledged(vhost: CeleryVhost, acks_late: bool) -> None:
    with vhost.channel() as channel:
        channel.queue_declare("work.parked", durable=True, arguments=FULL)
    worker = vhost.worker(setup={"drain_timeout": "0.1s"}, task_acks_late=acks_late)
    vhost.run("[fatal.delay(n) for n in range(12)]")
    ran = 8 if acks_late else 12  # what the worker may take
    eventually("they cannot be parked", lambda: len(vhost.runs()) == ran and NOT_YET in vhost.output())
    vhost.stop(worker)
    eventually("they are back", lambda: vhost.look("work")[0] == (12 if acks_late else 0))
    assert (f"{12} tasks that were acknowledged" in vhost.output()) is not acks_late


@pytest.mark.parametrize("error", [None, ValueError, SystemExit])
def test_only_an_original_whose_copy_is_stored_is_acknowledged(
    vhost: CeleryVhost, error: type[BaseException] | None
) -> None:
    from kombu import Connection
    from retryrmq.celery._copy_store import CopyStore, received
    from retryrmq.celery._copy_workers import CopyWorkers, PendingCopy

    def decide(contract: Any) -> Any:
        if error is not None:
            raise error
        return received(message).parked("fatal", ("no", "Error", None))(contract)

    with vhost.channel() as channel:
        channel.queue_declare("work", durable=True)
        channel.basic_publish("", "work", b"{}")
    with Connection(vhost.url) as connection:
        here = connection.default_channel
        message = here.message_to_python(eventually("it is there", lambda: here.basic_get("work")))
        message.delivery_info["queue"], soon = "work", []
        message.call_soon = soon.append  # a loop that has ended
        workers, copies = CopyWorkers(), CopyStore(lambda: vhost.url, "", None)
        workers.add(PendingCopy(copies, message, soon.append, decide))
        workers.drain(PATIENCE, connection.connection_errors)
        copies.close()
        assert len(soon) == 1 and message.acknowledged is (error is None)
    eventually("it comes back", lambda: vhost.look("work")[0] == (error is not None))
    assert len(vhost.all_parked()) == (error is None)


@thorough
def test_copies_without_an_original_are_limited(vhost: CeleryVhost) -> None:
    with vhost.channel() as channel:
        channel.queue_declare("work.parked", durable=True, arguments=FULL)
    worker = vhost.worker(task_acks_late=False, most_copies=5)
    vhost.run("[fatal.delay(n) for n in range(60)]")
    eventually("they cannot be parked", lambda: (vhost.folder / "output").read_text().count(NOT_YET) >= 20)
    # Five, those for which the worker waits, and what it had already taken.
    assert len(vhost.runs()) < 40
    with vhost.channel() as channel:
        channel.queue_delete("work.parked")
    eventually("all are parked", lambda: vhost.look("work.parked")[0] == 60)
    vhost.stop(worker)
    assert len(vhost.runs()) == 60


def test_nothing_is_lost_when_workers_are_killed_at_work(vhost: CeleryVhost) -> None:
    vhost.run("for n in range(60): fails.delay(n % 3, 0.3, 1 if n % 5 == 0 else 5); takes.delay(0.02, n)")
    for _ in range(4):
        vhost.worker()
        before = len(vhost.runs())
        eventually("it works", lambda before=before: len(vhost.runs()) > before + 20 or len(vhost.ended()) == 60)
        vhost.kill()
    vhost.worker()
    eventually("all is done", lambda: len(vhost.ended()) == 60 and vhost.is_empty())
    assert {run["note"] for run in vhost.runs("takes")} == set(range(60))


@thorough
def test_nothing_is_lost_when_connections_are_cut(vhost: CeleryVhost) -> None:
    proxy = Proxy(vhost.url)
    vhost.run("for n in range(30): fails.delay(n % 3, 0.5, 1 if n % 5 == 0 else 5)")
    vhost.url, url = proxy.url, vhost.url
    worker = vhost.worker()
    vhost.url = url
    for _ in range(3):
        before = len(vhost.runs())
        eventually("it works", lambda before=before: len(vhost.runs()) > before + 5 or len(vhost.ended()) == 30)
        proxy.cut()
    eventually("all is done", lambda: len(vhost.ended()) == 30 and vhost.is_empty())
    vhost.stop(worker)
    proxy.close()


@thorough
def test_nothing_is_lost_when_the_broker_is_killed() -> None:
    lines = os.environ.get("RETRYRMQ_TEST_BROKERS", "").strip().splitlines()
    version, _, _, control, *_ = lines[-1].split("|") if lines else ("", "", "", "")
    if not control:
        pytest.skip("this needs a broker that it may kill")
    broker = OwnBroker(control, version)
    try:
        with tempfile.TemporaryDirectory() as folder:
            vhost = CeleryVhost(broker, Path(folder))
            vhost.worker()
            vhost.run("for n in range(40): fails.delay(n % 3, 2, 1 if n % 5 == 0 else 5)")
            eventually("half of them ran", lambda: len(vhost.runs("fails")) >= 20)
            for _ in range(2):
                broker("kill")
                broker("start")
                before = len(vhost.runs())
                eventually(
                    "it works again", lambda before=before: len(vhost.runs()) > before or len(vhost.ended()) == 40
                )

            eventually("all is done", lambda: len(vhost.ended()) == 40)
            vhost.kill()
    finally:
        broker.purge()


def test_an_older_celery_and_the_first_protocol_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import celery
    from retryrmq.celery import setup

    app = celery.Celery(broker="amqp://localhost//")
    assert app.conf.task_protocol == 2  # reads the configuration
    app.conf.task_protocol = 1
    with pytest.raises(ValueError, match="`task_protocol` is 1"):
        setup(app)
    later = celery.Celery(broker="amqp://localhost//")
    setup(later)
    later.conf.task_protocol = 1
    with pytest.raises(ValueError, match="`task_protocol` is 1"):
        later.send_task("any")
    monkeypatch.setattr(celery, "VERSION", (5, 6, 3, "", ""))
    with pytest.raises(ImportError, match=r"5\.7"):
        setup(app)


def test_options_are_checked_and_a_second_call_replaces_the_first() -> None:
    from celery import Celery
    from retryrmq.celery import setup

    app = Celery(broker="amqp://guest:secret@localhost//")
    for options, word in (
        ({"crash_limit": 0}, "crash_limit"),
        ({"park": 1}, "park"),
        ({"queue_type": "stream"}, "stream"),
        ({"drain": "1s"}, "drain"),
        ({"drain_timeout": 1}, "drain_timeout"),
        ({"url": "http://here"}, "http"),
    ):
        with pytest.raises((ValueError, TypeError), match=word):
            setup(app, **options)  # type: ignore[arg-type]
    assert not hasattr(app, "retryrmq")
    setup(app)
    send = app.send_task
    setup(app, crash_limit=7)
    assert app.send_task is send and app.retryrmq.crash_limit == 7
    app.conf.update(task_default_queue="later")
    assert app.conf.worker_consumer == "retryrmq.celery:Consumer"
    assert "secret" not in repr(app.retryrmq)


@thorough
def test_the_configuration_may_come_later_and_another_consumer_is_refused(vhost: CeleryVhost) -> None:
    vhost.settings["configured_again"] = True
    vhost.worker()
    vhost.run("fatal.delay(1)")
    vhost.parked_in_the_end("fatal")
    with pytest.raises(AssertionError, match="derive it from retryrmq"):
        vhost.worker(worker_consumer="celery.worker.consumer.consumer:Consumer")


@pytest.mark.parametrize(
    ("broker", "url"),
    [
        ("amqp://", "amqp://guest:guest@localhost:5672/%2F"),
        ("pyamqp://a:b%2F@h:1/v%2Fw", "amqp://a:b%2F@h:1/v%2Fw"),
        ("amqps://a:b@h//", "amqps://a:b@h:5671/%2F"),
        ("amqp://one;amqp://two", "amqp://guest:guest@one:5672/%2F"),
    ],
)
def test_the_address_is_that_of_the_application(broker: str, url: str) -> None:
    from celery import Celery
    from retryrmq.celery._copy_store import broker_urls

    found = broker_urls(Celery(broker=broker))
    assert found[0] == url and len(found) == broker.count(";") + 1


def test_other_brokers_are_refused() -> None:
    from celery import Celery
    from retryrmq.celery._copy_store import broker_urls

    with pytest.raises(ValueError, match="RabbitMQ"):
        broker_urls(Celery(broker="memory://"))


def test_a_process_that_does_not_ask_for_it_has_no_celery() -> None:
    code = "import retryrmq, sys; sys.exit('celery' in sys.modules or 'kombu' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
