"""Brokers for tests: those of ``make test``, or the one behind ``RETRYRMQ_URL``."""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from program import Program

T = TypeVar("T")
#: Long enough for the busiest machine; a test that passes never waits for it.
PATIENCE = 120.0


class User:
    """Somebody whose password can be changed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.name = f"python-{uuid.uuid4().hex[:12]}"
        self.set_password("old")
        broker.api("PUT", f"/permissions/%2F/{self.name}", {"configure": ".*", "write": ".*", "read": ".*"})
        broker.users.append(self.name)

    def set_password(self, password: str) -> None:
        self._broker.api("PUT", f"/users/{self.name}", {"password": password, "tags": ""})

    def url(self, url: str) -> str:
        """This address, with our name and the first password."""
        return url.replace("guest:guest", f"{self.name}:old")


@dataclass
class Broker:
    """A real RabbitMQ."""

    version: str
    url: str
    management: str
    queues: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)

    def queue(self, name: str = "orders") -> str:
        """A queue's name that nobody else has; it and those that hang from it are deleted in the end."""
        queue = f"python.{name}.{uuid.uuid4().hex[:12]}"
        self.queues.append(queue)
        return queue

    def api(self, method: str, path: str, body: Any = None) -> Any:
        address = urllib.parse.urlsplit(self.management)
        request = urllib.request.Request(
            f"{address.scheme}://{address.hostname}:{address.port}/api{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
        passwords.add_password(None, request.full_url, address.username or "guest", address.password or "guest")
        opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(passwords))
        with opener.open(request, timeout=PATIENCE) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def clean(self) -> None:
        for user in self.users:
            self.api("DELETE", f"/users/{user}")
        for found in self.api("GET", "/queues/%2F?columns=name"):
            if any(found["name"].startswith(queue) for queue in self.queues):
                name = urllib.parse.quote(found["name"], safe="")
                try:
                    self.api("DELETE", f"/queues/%2F/{name}")
                except urllib.error.HTTPError as error:
                    # The clock of new queues goes by itself.
                    if error.code != 404:
                        raise


def brokers() -> list[tuple[str, str, str]]:
    lines = os.environ.get("RETRYRMQ_TEST_BROKERS", "").strip().splitlines()
    if lines:
        return [(version, url, management) for version, url, management, *_ in (line.split("|") for line in lines)]
    if url := os.environ.get("RETRYRMQ_URL"):
        return [("given", url, os.environ.get("RETRYRMQ_MANAGEMENT_URL", "http://guest:guest@127.0.0.1:15672"))]
    return []


def assigned(test: str, found: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """The brokers of this run's matrix for a test: all, or with ``RETRYRMQ_TEST_MATRIX=assigned`` one that its name chooses."""
    matrix = os.environ.get("RETRYRMQ_TEST_MATRIX") or "full"
    if matrix not in ("full", "assigned"):
        raise pytest.UsageError(f"RETRYRMQ_TEST_MATRIX is {matrix!r}: use full or assigned")
    if matrix == "full" or not found:
        return found
    value = 0x811C9DC5  # FNV-1a, as in tests/harness
    for byte in test.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return [found[(value >> 3) % len(found)]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "every_broker" in metafunc.fixturenames:
        found = assigned(metafunc.function.__name__, brokers())
        metafunc.parametrize("every_broker", found, indirect=True, ids=[version for version, *_ in found])


def _broker(version: str, url: str, management: str) -> Iterator[Broker]:
    broker = Broker(version, url, management)
    yield broker
    broker.clean()


@pytest.fixture
def every_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Runs the test on every broker of this run's matrix."""
    yield from _broker(*request.param)


@pytest.fixture
def broker() -> Iterator[Broker]:
    """The newest broker."""
    found = brokers()
    if not found:
        pytest.fail("no broker: run this through bindings-python/test, or set RETRYRMQ_URL")
    yield from _broker(*found[-1])


def eventually(what: str, probe: Callable[[], T]) -> T:
    """Waits until ``probe`` returns something true, and returns it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := probe()):
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.01)
    return found


async def soon(what: str, probe: Callable[[], T | Awaitable[T]]) -> T:
    """Like :func:`eventually`, without blocking the event loop."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = probe()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found  # type: ignore[return-value]
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.01)


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
