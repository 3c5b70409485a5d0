"""A virtual host of its own for one question to one peer, with the peer's worker in it."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
from peers import Peer
from pika.exceptions import AMQPError, NackError

#: Set by `run`: where its venv and its node project are.
HOME = Path(os.environ["PEERS_HOME"])
HERE = Path(__file__).parent
#: The bytes of a line that a worker writes down an attempt with; see shared/order.py.
LINE = 21
#: For anything that has to happen; generous, because a machine may be busy.
PATIENCE = 90.0


def until(condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """What ``condition`` returns as soon as that is true; or what it returned last, when patience ends."""
    deadline = time.monotonic() + patience
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


class Broker:
    """One of those in RETRYRMQ_TEST_BROKERS."""

    def __init__(self, line: str) -> None:
        self.version, self.amqp, management, self.control, *_ = line.split("|")
        # Its user is guest, as everywhere on these brokers.
        self.management = re.sub(r"//[^/@]*@", "//", management.rstrip("/"))

    @property
    def series(self) -> str:
        return ".".join(self.version.split(".")[:2])

    def restart(self) -> None:
        subprocess.run([*shlex.split(self.control), "restart", self.series], check=True, stdout=subprocess.DEVNULL)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The management API."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.management}/api/{path}", data, {"content-type": "application/json"}, method=method
        )
        request.add_header("authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            content = answer.read()
        return json.loads(content) if content else None


class Stage:
    """The virtual host, its queues, and the worker."""

    def __init__(self, broker: Broker, peer: Peer, delay_ms: int, retries: int, folder: str) -> None:
        self.broker, self.peer, self.folder = broker, peer, Path(folder)
        self.vhost = f"peers-{uuid.uuid4().hex[:10]}"
        self.url = f"amqp://{urlsplit(broker.amqp).netloc}/{self.vhost}"
        (self.folder / "attempts").mkdir()
        self.output = open(self.folder / "output", "ab")  # noqa: SIM115 - closed with the stage
        program = peer.program
        if program.endswith(".mjs"):
            self.command = ["node", str(HOME / "node" / peer.folder / program)]
        else:
            self.command = [str(HOME / "venv/bin/python"), str(HERE / peer.folder / program)]
        self.environment = {
            **os.environ,
            "PEER_URL": self.url,
            "PEER_DELAY_MS": str(delay_ms),
            "PEER_RETRIES": str(retries),
            "PEER_LOG": str(self.folder / "attempts"),
            "PYTHONPATH": str(HERE / "shared"),
        }
        self.worker: subprocess.Popen[bytes] | None = None

    # The worker.

    def start(self, patience: float = PATIENCE) -> bool:
        """Whether it consumes."""
        self.worker = subprocess.Popen(
            self.command,
            env=self.environment,
            cwd=self.folder,
            stdout=self.output,
            stderr=self.output,
            start_new_session=True,
        )
        until(lambda: self.consumers() or self.worker.poll() is not None, patience)
        return self.consumers() > 0

    def kill(self) -> None:
        """SIGKILL, to all its processes; returns when the broker knows."""
        if self.worker is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.worker.pid, signal.SIGKILL)
        self.worker.wait()
        self.worker = None
        until(lambda: self.consumers() == 0)

    def ended(self) -> bool:
        return self.worker is not None and self.worker.poll() is not None

    def said(self, words: str) -> bool:
        return words in (self.folder / "output").read_text(errors="replace")

    def attempts(self, order: str) -> list[float]:
        """When each attempt at this order began."""
        try:
            text = (self.folder / "attempts" / order).read_bytes()
        except FileNotFoundError:
            return []
        return [float(text[at : at + LINE]) for at in range(0, len(text) - LINE + 1, LINE)]

    # The broker.

    @contextmanager
    def channel(self) -> Iterator[Any]:
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()

    def consumers(self) -> int:
        return (self.look("work") or (0, 0))[1]

    def look(self, queue: str) -> tuple[int, int] | None:
        """Ready messages and consumers, as the broker knows them now."""
        try:
            with self.channel() as channel:
                method = channel.queue_declare(queue, passive=True).method
                return method.message_count, method.consumer_count
        except (AMQPError, OSError):
            return None

    def queues(self) -> list[str]:
        return [queue["name"] for queue in self.broker.ask("GET", f"queues/{self.vhost}?columns=name")]

    def ready(self) -> dict[str, int]:
        """How many messages are ready, in the queues that have some."""
        looks = ((name, self.look(name)) for name in self.queues() if name != "audit")
        return {name: look[0] for name, look in looks if look and look[0]}

    def found(self) -> dict[str, int]:
        """The same, when nobody consumes any more: of quorum queues a count may lag behind for a moment."""
        self.kill()
        until(self.ready, 5)
        return self.ready()

    def bind(self) -> None:
        """The peer's queue, and beside it one of another application, to the same exchange."""
        if self.peer.exchange is None:
            return
        exchange, key = self.peer.exchange
        with self.channel() as channel:
            channel.queue_declare("audit", durable=True)
            channel.queue_bind("audit", exchange, key)
            if not self.peer.sends:
                channel.queue_bind("work", exchange, key)

    def publish(self, *orders: dict[str, Any]) -> None:
        """In this order; returns when all are confirmed."""
        if self.peer.sends:
            bodies = [json.dumps(order) for order in orders]
            subprocess.run(
                [*self.command, "send", *bodies],
                env=self.environment,
                cwd=self.folder,
                check=True,
                stdout=self.output,
                stderr=self.output,
            )
            return
        with self.channel() as channel:
            channel.confirm_delivery()
            for order in orders:
                channel.basic_publish(
                    "events",
                    "order.paid",
                    self.peer.body(order),
                    pika.BasicProperties(delivery_mode=2, message_id=order["id"]),
                )

    def delete_waiting(self) -> None:
        with self.channel() as channel:
            for name in self.queues():
                if re.search(self.peer.waiting or "$^", name):
                    channel.queue_delete(name)

    def fill_waiting(self) -> None:
        """No message more: a policy, as an operator would set it, and what is needed until the broker refuses the next."""
        definition = {"max-length": 0, "overflow": "reject-publish"}
        policy = {"pattern": self.peer.waiting, "definition": definition, "apply-to": "queues"}
        self.broker.ask("PUT", f"policies/{self.vhost}/full", policy)
        names = [name for name in self.queues() if re.search(self.peer.waiting or "$^", name)]
        filler = json.dumps({"id": "filler", "fail": 0}).encode()
        with self.channel() as channel:
            channel.confirm_delivery()

            def refuses(name: str) -> bool:
                try:
                    channel.basic_publish("", name, filler)  # a quorum queue takes one more than it should
                except NackError:
                    return True
                return False

            for name in names:
                if not until(lambda name=name: refuses(name)):
                    raise RuntimeError(f"{name} is not full")

    def has_filler(self, queue: str) -> bool:
        with self.channel() as channel:
            return b"filler" in (channel.basic_get(queue)[2] or b"")

    def empty_waiting(self) -> None:
        self.broker.ask("DELETE", f"policies/{self.vhost}/full")


@contextmanager
def stage(broker: Broker, peer: Peer, *, delay_ms: int, retries: int = 3) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory() as folder:
        set_up = Stage(broker, peer, delay_ms, retries, folder)
        broker.ask("PUT", f"vhosts/{set_up.vhost}", {})
        broker.ask("PUT", f"permissions/{set_up.vhost}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        try:
            with set_up.channel() as channel:
                channel.exchange_declare("events", "topic", durable=True)
            yield set_up
        finally:
            set_up.kill()
            set_up.output.close()
            broker.ask("DELETE", f"vhosts/{set_up.vhost}")
