"""Logins by a function: asked at every connection, whatever becomes of the call."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import retryrmq
from conftest import Broker, User, eventually, soon
from proxy import Proxy
from retryrmq import _native
from retryrmq._notifications import dispatcher


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    proxy = Proxy(broker.url)
    yield proxy
    proxy.close()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield

    def is_empty() -> bool:
        gc.collect()
        return not dispatcher()._credential_providers and not _native.live_objects()["credential_requests"]

    eventually("no function is held, and no question is open", is_empty)


class Vault:
    """Knows the password of a user, and whether it may be had."""

    def __init__(self, user: User, password: str = "old") -> None:
        self.name, self.password = user.name, password
        self.asked = 0
        self.how: Callable[[], Any] = lambda: None

    def login(self) -> retryrmq.Login:
        self.asked += 1
        self.how()
        return retryrmq.Login(self.name, self.password)

    async def login_later(self) -> tuple[str, str]:
        self.asked += 1
        await asyncio.sleep(0)
        if (waits := self.how()) is not None:
            await waits
        return self.name, self.password


def ways(vault: Vault) -> dict[str, Callable[[], Any]]:
    return {
        "plain": vault.login,
        "async": vault.login_later,
        "plain that returns a coroutine": lambda: vault.login_later(),
        "async behind partial": functools.partial(vault.login_later),
    }


WAYS = ["plain", "async", "plain that returns a coroutine", "async behind partial"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", ["async", "blocking", "app"])
def test_a_function_is_asked_at_every_connection(broker: Broker, proxy: Proxy, form: str, way: str) -> None:
    user, queue = User(broker), broker.queue()
    vault, seen = Vault(user), list[str]()
    credentials = ways(vault)[way]
    url = proxy.url.replace("guest:guest@", "somebody:else@")

    def handle(msg: retryrmq.Message) -> None:
        seen.append(msg.text())

    def change(asked: int) -> None:
        assert vault.asked == asked
        user.set_password("new")
        vault.password = "new"
        proxy.cut()

    async def on_loop(client: retryrmq.Client) -> None:
        await client.publish(queue, "before")
        await soon("the first is handled", lambda: "before" in seen)
        change(vault.asked)
        await soon("it was asked again", lambda: client.reconnects >= 2)
        await soon("it is back", client.healthy)
        await client.publish(queue, "after")
        await soon("the next is handled", lambda: "after" in seen)

    async def main() -> None:
        if form == "app":
            app = retryrmq.App(url, credentials=credentials)
            app.consume(queue, dlx=True)(handle)
            async with app:
                await on_loop(app.client)
            return
        async with (
            retryrmq.connect(url, credentials=credentials) as client,
            client.consume(queue, handle, dlx=True),
        ):
            await on_loop(client)

    if form != "blocking":
        asyncio.run(main())
        return
    with (
        retryrmq.connect_blocking(url, credentials=credentials) as client,
        client.consume(queue, handle, dlx=True),
    ):
        client.publish(queue, "before")
        eventually("the first is handled", lambda: "before" in seen)
        change(vault.asked)
        eventually("it was asked again", lambda: client.reconnects >= 2)
        eventually("it is back", client.healthy)
        client.publish(queue, "after")
        eventually("the next is handled", lambda: "after" in seen)


def test_a_function_on_every_broker(every_broker: Broker) -> None:
    user = User(every_broker)
    vault = Vault(user)
    with retryrmq.connect_blocking(every_broker.url, credentials=vault.login) as client:
        assert client.healthy() and vault.asked >= 2  # by each of the two connections


def test_a_password_that_ends_is_asked_for_again_on_the_open_connection(broker: Broker) -> None:
    user = User(broker)
    asked: list[threading.Thread] = []

    async def login() -> retryrmq.Login:
        asked.append(threading.current_thread())
        return retryrmq.Login(user.name, "old", expires_in=timedelta(seconds=2 if len(asked) < 5 else 3600))

    async def main() -> None:
        async with retryrmq.connect(broker.url, credentials=login) as client:
            await soon("both connections asked again", lambda: len(asked) >= 6)
            assert client.reconnects == 0 and client.healthy()

    asyncio.run(main())
    assert set(asked) == {threading.main_thread()}


def test_a_plain_function_holds_up_no_event_loop(broker: Broker) -> None:
    user = User(broker)
    asked, go_on = threading.Event(), threading.Event()
    place = contextvars.ContextVar("place", default="nowhere")
    where: list[tuple[str, bool]] = []

    def login() -> tuple[str, str]:
        where.append((place.get(), threading.current_thread() is threading.main_thread()))
        asked.set()
        assert go_on.wait(60)
        return user.name, "old"

    async def main() -> None:
        place.set("here")
        connecting = asyncio.create_task(retryrmq.connect(broker.url, credentials=login))
        await soon("it is asked", asked.is_set)  # which this event loop could not tell if it were held up
        go_on.set()
        await (await connecting).close()

    asyncio.run(main())
    assert set(where) == {("here", False)}


def test_a_function_is_called_by_one_at_a_time(broker: Broker, proxy: Proxy) -> None:
    user = User(broker)
    inside, most = 0, 0
    lock = threading.Lock()
    meet = threading.Event()

    def login() -> tuple[str, str]:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        meet.wait(0.3)  # nobody sets it: time for another call, if there were one
        with lock:
            inside -= 1
        return user.name, "old"

    with retryrmq.connect_blocking(proxy.url, credentials=login) as client:
        proxy.cut()
        eventually("both connections are back", lambda: client.reconnects >= 2)
    assert most == 1


def returning(what: Any) -> Callable[[], Any]:
    return lambda: what


def raising(kind: type[BaseException], *arguments: Any) -> Callable[[], Any]:
    def ask() -> Any:
        raise kind(*arguments)

    return ask


class Broken(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


async def cancels_itself() -> Any:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(3600)


RUBBISH: list[tuple[Callable[[], Any], str]] = [
    (raising(ConnectionError, "the vault is sealed"), "failed: ConnectionError: the vault is sealed"),
    (raising(SystemExit, 3), "failed: SystemExit: 3"),
    (raising(Broken), "failed: Broken: <no error text: Broken.__str__ raises>"),
    (raising(ValueError, "\udcff"), r"failed: ValueError: \\udcff"),
    (raising(ValueError, "x" * 1_000_000), "failed: ValueError: xxx"),
    (cancels_itself, "failed: it was cancelled"),
    (returning(None), "a tuple of user and password, not a NoneType"),
    (returning("s3cret"), "not a str"),
    (returning({"user": "maria", "password": "s3cret"}), "not a dict"),
    (returning(["maria", "s3cret"]), "not a list"),
    (returning(("maria", "s3cret", "more")), "not a tuple of 3"),
    (returning(("maria", b"s3cret")), "`password` must be a str, not bytes"),
    (returning((5, "s3cret")), "`user` must be a str, not int"),
    (returning(("maria", "s3cret\udcff")), "`password` holds a lone surrogate"),
    (lambda: retryrmq.Login("maria", "s3cret", expires_in=5), "`expires_in` must be a timedelta"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("function", "says"), RUBBISH, ids=[says for _, says in RUBBISH])
@pytest.mark.parametrize("form", ["async", "blocking", "app"])
def test_a_function_that_fails_fails_the_login(
    broker: Broker, form: str, function: Callable[[], Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def later() -> Any:
        result = function()
        return await result if asyncio.iscoroutine(result) else result

    for credentials in (function, later):
        app = retryrmq.App(broker.url, credentials=credentials)
        app.consume(broker.queue(), dlx=True)(print)
        with pytest.raises(retryrmq.AuthenticationFailedError, match=says) as refused:
            if form == "async":
                asyncio.run(retryrmq.connect(broker.url, credentials=credentials))
            elif form == "blocking":
                retryrmq.connect_blocking(broker.url, credentials=credentials, wait=True)
            else:
                app.run()
        said = f"{refused.value}{refused.value.detail}{caplog.text}"
        assert "the function that gives the credentials failed" in said and len(str(refused.value)) < 1_000
        assert "s3cret" not in said


def test_what_a_function_raised_is_traced_at_debug(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "retryrmq.credentials")
    with pytest.raises(retryrmq.AuthenticationFailedError):
        retryrmq.connect_blocking(broker.url, credentials=raising(ValueError, "no\nnext line"))

    def records() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "retryrmq.credentials"]

    (record,) = eventually("it is logged", records)
    assert record.levelno == logging.DEBUG and "raise kind" in caplog.text and "no\\nnext line" in record.getMessage()
    caplog.clear()  # the trace holds what it went through


def test_a_function_that_never_answers_fails_the_login(broker: Broker) -> None:
    stuck, go_on = threading.Event(), threading.Event()
    cancelled: list[str] = []

    def never() -> Any:
        stuck.set()
        go_on.wait(120)

    async def never_async() -> Any:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append("cancelled")
            raise

    async def connected(credentials: Callable[[], Any]) -> str:
        with pytest.raises(retryrmq.AuthenticationFailedError, match="did not answer within") as refused:
            await retryrmq.connect(broker.url, credentials=credentials)
        return str(refused.value)

    def connected_blocking(credentials: Callable[[], Any]) -> None:
        with pytest.raises(retryrmq.AuthenticationFailedError, match="did not answer within"):
            retryrmq.connect_blocking(broker.url, credentials=credentials)

    async def main() -> None:
        # All at once: each takes as long as the core waits.
        await asyncio.gather(
            connected(never),
            connected(never_async),
            asyncio.to_thread(connected_blocking, never),
            asyncio.to_thread(connected_blocking, never_async),
        )
        await soon("what can be cancelled is", lambda: len(cancelled) == 2)

    asyncio.run(main())
    assert stuck.is_set()
    go_on.set()


@pytest.mark.parametrize("how", ["plain", "async"])
def test_one_call_that_hangs_keeps_no_later_one_waiting(
    broker: Broker, proxy: Proxy, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    user = User(broker)
    go_on = threading.Event()
    asked = 0

    def hang() -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            go_on.wait(120)

    vault = Vault(user)
    vault.how = hang

    async def login() -> tuple[str, str]:
        nonlocal asked
        asked += 1
        if asked == 3:
            await asyncio.sleep(3600)
        return user.name, "old"

    async def main() -> None:
        async with retryrmq.connect(proxy.url, credentials=vault.login if how == "plain" else login) as client:
            assert asked == 2
            proxy.cut()
            await soon("the third call hangs", lambda: asked >= 3)
            await soon("both connections are back all the same", client.healthy)

    asyncio.run(main())
    go_on.set()
    host = proxy.url.rpartition("@")[2].partition("/")[0]

    def told() -> list[int]:
        # Another test may have left a client behind.
        own = [record for record in caplog.records if host in record.getMessage()]
        return [record.levelno for record in own if "did not answer within" in record.getMessage()]

    eventually("it is told", told)
    assert told() in ([logging.WARNING], [logging.WARNING] * 2)  # once for each that waited


@pytest.mark.parametrize("form", ["async", "blocking"])
@pytest.mark.parametrize("how", ["plain", "async"])
def test_closing_waits_for_no_function(broker: Broker, proxy: Proxy, form: str, how: str) -> None:
    user, queue = User(broker), broker.queue()
    started, hanging = threading.Event(), threading.Event()
    go_on, cancelled = threading.Event(), threading.Event()

    def login() -> tuple[str, str]:
        if started.is_set():
            hanging.set()
            go_on.wait(120)
        return user.name, "old"

    async def login_async() -> tuple[str, str]:
        if started.is_set():
            hanging.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.set()
                raise
        return user.name, "old"

    credentials: Any = login if how == "plain" else login_async
    if form == "blocking":
        client = retryrmq.connect_blocking(proxy.url, credentials=credentials)
        consumer = client.consume(queue, lambda msg: None, dlx=True, drain_timeout="1s").start()
        started.set()
        proxy.cut()
        assert hanging.wait(60)
        consumer.close()
        client.close()
    else:

        async def main() -> None:
            client = await retryrmq.connect(proxy.url, credentials=credentials)
            consumer = await client.consume(queue, lambda msg: None, dlx=True, drain_timeout="1s").start()
            started.set()
            proxy.cut()
            await soon("it hangs", hanging.is_set)
            await asyncio.wait_for(consumer.close(), 60)
            await asyncio.wait_for(client.close(), 60)
            if how == "async":
                await soon("nothing of it is left", cancelled.is_set)

        asyncio.run(main())
    if how == "async":
        assert cancelled.wait(60)
    assert not go_on.is_set()
    go_on.set()


def test_whoever_stops_waiting_lets_go_of_the_function(broker: Broker) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def login() -> Any:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async def main() -> None:
        connecting = asyncio.create_task(retryrmq.connect(broker.url, credentials=login))
        await asyncio.wait_for(began.wait(), 60)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await asyncio.wait_for(ended.wait(), 60)

    asyncio.run(main())


def test_a_loop_that_is_closed_fails_the_login(broker: Broker, proxy: Proxy) -> None:
    vault = Vault(User(broker))
    client = asyncio.run(retryrmq.connect(proxy.url, credentials=vault.login_later))
    assert client.healthy()
    proxy.cut()
    eventually("it is known why", lambda: "its event loop is closed" in (client.trouble() or ""))
    client.blocking.close()


def test_a_loop_that_ends_in_the_middle_of_a_call_fails_the_login(broker: Broker, proxy: Proxy) -> None:
    vault = Vault(User(broker))
    clients: list[retryrmq.Client] = []

    async def main() -> None:
        clients.append(await retryrmq.connect(proxy.url, credentials=vault.login_later))
        vault.how = lambda: asyncio.sleep(3600)
        asked = vault.asked
        proxy.cut()
        await soon("it is asked", lambda: vault.asked > asked)

    asyncio.run(main())
    told = ("it was cancelled", "its event loop is closed")
    eventually("it is known why", lambda: any(why in (clients[0].trouble() or "") for why in told))
    clients[0].blocking.close()


def test_a_function_that_fails_later_is_tried_for_ever_and_told_once_a_try(
    broker: Broker, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    vault, queue = Vault(User(broker)), broker.queue()
    told: list[retryrmq.Event] = []
    caplog.set_level(logging.DEBUG, "retryrmq")

    def fail() -> None:
        raise ConnectionError("the vault is sealed")

    with (
        retryrmq.connect_blocking(proxy.url, credentials=vault.login, end_when_refused=True) as client,
        client.consume(queue, lambda msg: None, dlx=True, on_event=told.append),
    ):
        vault.how, asked = fail, vault.asked
        proxy.cut()
        eventually("it is known why", lambda: "the vault is sealed" in (client.trouble() or ""))
        eventually("it is tried", lambda: vault.asked >= asked + 6)
        vault.how = lambda: None
        eventually("it is back", client.healthy)
        assert "login_refused" not in [event.name for event in told]  # nor has the broker ended the client
        failures = vault.asked - asked

        def tries() -> list[logging.LogRecord]:
            # Another test may have left a client behind.
            host = proxy.url.rpartition("@")[2].partition("/")[0]
            lines = [record for record in caplog.records if host in record.getMessage()]
            return [record for record in lines if "cannot reconnect yet" in record.getMessage()]

        # Some failed for a look at the queues, which is not told here.
        eventually("the tries of both connections are told", lambda: len(tries()) >= 4)
    lines = [record.getMessage() for record in tries()]
    assert len(lines) == len(set(lines)) <= failures  # each with its number
    assert all("the vault is sealed" in line for line in lines)
    assert [record.levelno for record in tries()].count(logging.WARNING) == 2  # of each connection the first
    caplog.clear()  # traces hold what they went through


def test_a_refusal_by_the_broker_ends_a_client_that_is_to_end(broker: Broker, proxy: Proxy) -> None:
    user, queue = User(broker), broker.queue()
    vault = Vault(user)
    with retryrmq.connect_blocking(proxy.url, credentials=vault.login, end_when_refused=True) as client:
        consumer = client.consume(queue, lambda msg: None, dlx=True).start()
        user.set_password("new")
        proxy.cut()
        with pytest.raises(retryrmq.AuthenticationFailedError):
            consumer.run()


def test_a_function_that_knows_its_client_is_let_go_of(broker: Broker) -> None:
    """When the client is closed, though the function holds it."""
    before = _native.live_objects()["clients"]
    user = User(broker)

    def made() -> None:
        clients: list[Any] = []

        def login() -> tuple[str, str]:
            assert clients is not None
            return user.name, "old"

        clients.append(retryrmq.connect_blocking(broker.url, credentials=login))
        clients[0].close()

    def is_gone() -> bool:
        gc.collect()
        return _native.live_objects()["clients"] <= before

    made()
    eventually("the client is gone", is_gone)


def with_yield() -> Any:
    yield "maria", "s3cret"


async def with_async_yield() -> Any:
    yield "maria", "s3cret"


@pytest.mark.parametrize(
    ("credentials", "says"),
    [
        (5, "`credentials` must be callable, not int"),
        (("maria", "s3cret"), "`credentials` must be a function that returns a retryrmq.Login, not a tuple itself"),
        (retryrmq.Login("maria", "s3cret"), "not a Login itself"),
        (with_yield, "`credentials` has a `yield`"),
        (with_async_yield, "`credentials` has a `yield`"),
        (lambda attempt: ("maria", "s3cret"), "`credentials` is called without arguments"),
    ],
)
def test_what_is_no_function_is_refused_at_the_call(credentials: Any, says: str) -> None:
    for connect in (retryrmq.connect, retryrmq.connect_blocking, retryrmq.App):
        with pytest.raises(retryrmq.InvalidTypeError, match=says) as refused:
            connect("amqp://localhost", credentials=credentials)
        assert "s3cret" not in str(refused.value)


def test_a_login_shows_no_password() -> None:
    login = retryrmq.Login("maria", "s3cret", expires_in="5m")
    assert repr(login) == str(login) == "Login(user='maria', expires_in='5m')"
    assert pickle.loads(pickle.dumps(login)) == login
    for wrong in ({"user": 5}, {"password": b"s3cret"}, {"expires_in": 5}, {"expires_in": "soon"}):
        fields: dict[str, Any] = {"user": "maria", "password": "s3cret", **wrong}
        with pytest.raises(retryrmq.RetryRmqError, match=next(iter(wrong))) as refused:
            retryrmq.Login(**fields)
        assert "s3cret" not in str(refused.value)
