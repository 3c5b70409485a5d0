"""Several hosts, brokers that come later, and logins that are refused later."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import retryrmq
from conftest import Broker, User, eventually, soon
from proxy import Proxy, free_port
from retryrmq import _native
from retryrmq.client import Connecting


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    proxy = Proxy(broker.url)
    yield proxy
    proxy.close()


def test_any_of_several_hosts_will_do(every_broker: Broker) -> None:
    dead, url = free_port(), every_broker.url
    dead_url = url.replace(url.rpartition("@")[2].partition("/")[0], f"127.0.0.1:{dead}")
    several: list[Any] = [
        url.replace("@", f"@127.0.0.1:{dead},"),
        f"{dead_url},{url}",
        [dead_url, url],
        (dead_url, url),
    ]
    for urls in several:
        for _ in range(3):  # in any order
            with retryrmq.connect_blocking(urls) as client:
                assert client.healthy()

    async def main() -> None:
        async with retryrmq.connect([dead_url, url]) as client:
            assert client.healthy() and client.trouble() is None

    asyncio.run(main())
    # One that refuses says more than one that is away.
    with pytest.raises(retryrmq.AuthenticationFailedError):
        retryrmq.connect_blocking([dead_url, url.replace("guest:guest", "guest:sesame")])
    with pytest.raises(retryrmq.UnreachableError):
        retryrmq.connect_blocking([dead_url, dead_url])


@pytest.mark.parametrize(
    "url", [[], ["amqp://one/v", "amqp://two/w"], ["amqp://one", 5], b"amqp://one", {"amqp://one"}]
)
def test_addresses_that_cannot_be_meant_are_refused_at_once(url: Any) -> None:
    for connect in (retryrmq.connect, retryrmq.connect_blocking, retryrmq.App):
        with pytest.raises((retryrmq.InvalidUrlError, retryrmq.InvalidTypeError)):
            connect(url)


@pytest.mark.parametrize("option", ["wait", "end_when_refused"])
def test_an_option_that_is_no_truth_is_named(option: str) -> None:
    wrong: dict[str, Any] = {option: "yes"}
    for connect in (retryrmq.connect, retryrmq.connect_blocking, retryrmq.App):
        with pytest.raises(retryrmq.InvalidTypeError, match=option):
            connect("amqp://localhost", **wrong)


class Later:
    """A broker that is there in a while, at this port."""

    def __init__(self, broker: Broker, port: int) -> None:
        #: Set before anybody can connect.
        self.is_there = False
        self._broker, self._port = broker, port
        self._proxy: Proxy | None = None
        self._timer = threading.Timer(0.8, self._come)
        self._timer.start()

    def _come(self) -> None:
        self.is_there = True
        self._proxy = Proxy(self._broker.url, self._port)

    def close(self) -> None:
        self._timer.join()
        assert self._proxy is not None
        self._proxy.close()


@pytest.mark.parametrize("how", ["async", "blocking", "app"])
def test_a_broker_that_is_not_there_yet_is_waited_for(broker: Broker, how: str) -> None:
    port, queue = free_port(), broker.queue()
    url = f"amqp://guest:guest@127.0.0.1:{port}/%2f"
    app = retryrmq.App(url)
    app.consume(queue, dlx=True)(print)
    with pytest.raises(retryrmq.UnreachableError):
        retryrmq.connect_blocking(url)
    later = Later(broker, port)

    async def main() -> None:
        if how == "app":
            assert not app.healthy() and app.trouble() == "the app is not connected"
            async with app:
                assert app.healthy() and later.is_there
            assert not app.healthy()
        else:
            async with retryrmq.connect(url, wait=True) as client:
                assert client.healthy() and later.is_there

    if how == "blocking":
        with retryrmq.connect_blocking(url, wait=True) as client:
            assert client.healthy() and later.is_there
    else:
        asyncio.run(main())
    later.close()


@pytest.mark.parametrize("how", ["async", "blocking", "app"])
def test_a_client_that_waits_waits_to_consume_as_well(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    port, queue = free_port(), broker.queue()
    first = Proxy(broker.url, port)
    later: list[Later] = []

    def go() -> None:
        first.close()
        later.append(Later(broker, port))

    async def main() -> None:
        async with retryrmq.connect(first.url, wait=True) as client:
            go()
            async with client.consume(queue, print, dlx=True):
                assert later[0].is_there

    if how == "app":

        class Late(retryrmq.Consumer):
            async def start(self) -> retryrmq.Consumer:
                go()
                return await super().start()

        monkeypatch.setattr("retryrmq.client.Consumer", Late)
        app = retryrmq.App(first.url)
        app.consume(queue, dlx=True)(print)

        async def run() -> None:
            async with app:
                assert later[0].is_there

        asyncio.run(run())
    elif how == "blocking":
        with retryrmq.connect_blocking(first.url, wait=True) as client:
            go()
            with client.consume(queue, print, dlx=True):
                assert later[0].is_there
    else:
        asyncio.run(main())
    later[0].close()


@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_an_app_that_waits_to_consume_can_be_stopped(broker: Broker, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    queue, way = broker.queue(), Proxy(broker.url)

    class Late(retryrmq.Consumer):
        async def start(self) -> retryrmq.Consumer:
            way.close()
            return await super().start()

    monkeypatch.setattr("retryrmq.client.Consumer", Late)
    app = retryrmq.App(way.url)
    app.consume(queue, dlx=True)(print)
    before = operations()

    async def main() -> None:
        serving = asyncio.ensure_future(app.serve())
        await soon("it waits", lambda: app._starting is not None)
        await asyncio.sleep(0.1)
        assert not serving.done()
        if how == "stop":
            app.stop()
            await asyncio.wait_for(serving, 60)
        else:
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(serving, 60)
        await gone(before)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["close", "stop"])
@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_consumer_that_waits_to_start_can_be_closed(broker: Broker, kind: str, how: str) -> None:
    queue, way = broker.queue(), Proxy(broker.url)

    async def main() -> None:
        async with retryrmq.connect(way.url, wait=True) as client:
            way.close()
            consumer = client.consume(queue, print, dlx=True)
            starting = asyncio.ensure_future(consumer.start())
            await soon("it waits", lambda: consumer._subscribing is not None)
            if how == "close":
                await consumer.close()
            else:
                consumer.stop()
            with pytest.raises(retryrmq.ClosedError):
                await asyncio.wait_for(starting, 60)

    if kind == "async":
        asyncio.run(main())
        return
    with retryrmq.connect_blocking(way.url, wait=True) as client:
        way.close()
        consumer = client.consume(queue, print, dlx=True)
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(consumer.start)
            while consumer._subscribing is None:
                time.sleep(0.01)
            getattr(consumer, how)()
            with pytest.raises(retryrmq.ClosedError):
                starting.result(60)


def test_who_refuses_is_not_waited_for(broker: Broker) -> None:
    with pytest.raises(retryrmq.AuthenticationFailedError):
        retryrmq.connect_blocking(broker.url.replace("guest:guest", "guest:sesame"), wait=True)


def test_an_app_need_not_wait() -> None:
    app = retryrmq.App(f"amqp://localhost:{free_port()}", wait=False)
    app.consume("orders", dlx=True)(print)
    with pytest.raises(retryrmq.UnreachableError):
        app.run()


def operations() -> int:
    gc.collect()
    return _native.live_objects()["operations"]


async def gone(before: int) -> None:
    await soon("nothing waits any more", lambda: operations() <= before)


def test_an_app_that_waits_can_be_stopped() -> None:
    app = retryrmq.App(f"amqp://localhost:{free_port()}")
    app.consume("orders", dlx=True)(print)
    before = operations()

    async def main() -> None:
        for _ in range(2):  # what stopped it then is over
            serving = asyncio.ensure_future(app.serve())
            await soon("it waits", lambda: app._connecting is not None)
            await asyncio.sleep(0.1)
            assert not serving.done()
            await asyncio.to_thread(app.stop)
            await asyncio.wait_for(serving, 60)
        await gone(before)

    asyncio.run(main())


def test_nobody_waits_for_a_broker_in_vain(broker: Broker) -> None:
    url = f"amqp://localhost:{free_port()}"
    before = operations()

    async def main() -> None:
        connecting = retryrmq.connect(url, wait=True)
        for _ in range(2):  # the second time anew
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(connecting, 0.1)
            await gone(before)
        retryrmq.connect(url, wait=True)  # and nobody awaits it
        await gone(before)

    asyncio.run(main())


def test_a_connection_to_be_is_taken_for_a_coroutine(broker: Broker) -> None:
    """By whatever wants one; and it is still awaited and entered as before."""
    client = asyncio.run(retryrmq.connect(broker.url))
    assert isinstance(client, retryrmq.Client) and client.healthy()
    client.blocking.close()

    async def main() -> None:
        url = broker.url
        clients = [
            await retryrmq.connect(url),
            await asyncio.create_task(retryrmq.connect(url)),
            await asyncio.wait_for(retryrmq.connect(url), 60),
            *(await asyncio.gather(retryrmq.connect(url), retryrmq.connect(url))),
        ]
        connecting = retryrmq.connect(url)
        clients += [await connecting, await connecting]
        assert clients[-1] is clients[-2]
        for client in clients:
            assert client.healthy()
        for client in clients[:-1]:
            await client.close()
        async with retryrmq.connect(url) as client:
            assert client.healthy()
        assert not client.healthy()

    asyncio.run(main())
    with pytest.raises(retryrmq.UnreachableError):
        asyncio.run(retryrmq.connect(f"amqp://localhost:{free_port()}"))


async def waits(connecting: Connecting) -> retryrmq.Client:
    return await connecting


#: How a task comes to wait.
WAYS: list[Callable[[Connecting], asyncio.Task[retryrmq.Client]]] = [
    lambda connecting: asyncio.create_task(waits(connecting)),
    lambda connecting: asyncio.create_task(connecting),
]


@pytest.mark.parametrize("begin", WAYS, ids=["awaited", "as a coroutine"])
def test_any_number_of_tasks_may_wait_for_a_connection(
    broker: Broker, begin: Callable[[Connecting], asyncio.Task[retryrmq.Client]]
) -> None:
    port = free_port()
    url = broker.url.replace(broker.url.rpartition("@")[2].partition("/")[0], f"127.0.0.1:{port}")
    eventually("what other tests began has ended", lambda: operations() == 0)
    before = operations()

    async def main() -> None:
        # After a failure the next one tries anew, and tasks share a failure.
        connecting = retryrmq.connect(url)
        for _ in range(2):
            ends = asyncio.gather(*(begin(connecting) for _ in range(3)), return_exceptions=True)
            assert [type(end) for end in await ends] == [retryrmq.UnreachableError] * 3
        del connecting, ends

        # One attempt is shared, and cancelling tasks disturbs it only when none is left.
        connecting = retryrmq.connect(url, wait=True)
        tasks = [begin(connecting) for _ in range(4)]
        await soon("one attempt is made", lambda: operations() == before + 1)
        for ended in (tasks[0], tasks[2]):
            ended.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ended
        assert operations() == before + 1
        proxy = Proxy(broker.url, port)
        first, second = await asyncio.gather(tasks[1], tasks[3])
        assert first is second is await connecting and first.healthy()
        await first.close()
        proxy.close()

        # With the last task the attempt ends.
        connecting = retryrmq.connect(url, wait=True)
        tasks = [begin(connecting) for _ in range(3)]
        await soon("one attempt is made", lambda: operations() > before)
        while tasks:
            tasks[-1].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks.pop()
        await gone(before)

    asyncio.run(main())


def test_a_connection_is_awaited_on_several_event_loops(broker: Broker) -> None:
    connecting = retryrmq.connect(f"amqp://localhost:{free_port()}")
    for _ in range(2):
        with pytest.raises(retryrmq.UnreachableError):
            asyncio.run(waits(connecting))
    connecting = retryrmq.connect(broker.url)
    with ThreadPoolExecutor() as pool:
        clients = list(pool.map(lambda _: asyncio.run(waits(connecting)), range(3)))
    assert all(client.healthy() for client in clients)
    for client in clients:
        client.blocking.close()


def test_a_connection_that_nobody_awaits_is_not_tried(recwarn: pytest.WarningsRecorder) -> None:
    before = operations()
    recwarn.clear()  # what was collected may be of other tests
    connecting = retryrmq.connect("amqp://localhost")
    assert operations() <= before
    connecting.close()
    del connecting
    gc.collect()
    assert not list(recwarn)


def test_health_tells_why_it_is_not_well(broker: Broker) -> None:
    proxy = Proxy(broker.url)
    client = retryrmq.connect_blocking(proxy.url)
    assert client.healthy() and client.trouble() is None
    proxy.close()
    eventually("it is down", lambda: not client.healthy())
    eventually("it is known why", lambda: "no broker answers" in (client.trouble() or ""))
    client.close()
    assert not client.healthy() and "closed" in (client.trouble() or "")


def test_metrics_tell_of_connections_handlers_and_what_is_parked(broker: Broker) -> None:
    queue = broker.queue()

    def handle(msg: retryrmq.Message) -> None:
        raise retryrmq.Park("it is tested")

    def told(sample: str) -> bool:
        return sample in client.metrics_text()

    client = retryrmq.connect_blocking(broker.url)
    with client.consume(queue, handle, dlx=True):
        client.publish(queue, b"x")
        for sample in (
            'retryrmq_connection_up{purpose="consume"} 1',
            'retryrmq_connection_up{purpose="publish"} 1',
            f'retryrmq_handler_seconds_count{{queue="{queue}"}} 1',
            f'retryrmq_parked_depth{{queue="{queue}"}} 1',
        ):
            eventually(sample, functools.partial(told, sample))
    client.close()
    assert 'retryrmq_connection_up{purpose="consume"} 0' in client.metrics_text()


def test_a_password_that_was_changed_is_told(broker: Broker, proxy: Proxy) -> None:
    user, queue = User(broker), broker.queue()
    told: list[retryrmq.Event] = []
    with (
        retryrmq.connect_blocking(user.url(proxy.url)) as client,
        client.consume(queue, lambda msg: None, dlx=True, on_event=told.append),
    ):
        user.set_password("new")
        proxy.cut()
        eventually("it is told", lambda: "login_refused" in [event.name for event in told])
        event = next(event for event in told if isinstance(event, retryrmq.LoginRefused))
        assert event.queue == queue and user.name in event.error and "old" not in event.error
        eventually("it is known why", lambda: user.name in (client.trouble() or ""))
        user.set_password("old")
        eventually("it is back", client.healthy)


def running_app(url: str, queue: str) -> tuple[Callable[[], Any], Callable[[], bool]]:
    app = retryrmq.App(url, end_when_refused=True)
    app.consume(queue, dlx=True)(print)
    return app.run, lambda: queue in app.stats()


def running_consumer(url: str, queue: str) -> tuple[Callable[[], Any], Callable[[], bool]]:
    consumers: list[retryrmq.Consumer] = []

    async def main() -> None:
        async with retryrmq.connect(url, end_when_refused=True) as client:
            consumers.append(client.consume(queue, print, dlx=True))
            await consumers[0].run()

    return lambda: asyncio.run(main()), lambda: bool(consumers and consumers[0]._subscription)


def iterating(url: str, queue: str) -> tuple[Callable[[], Any], Callable[[], bool]]:
    consumers: list[retryrmq.Consumer] = []

    async def main() -> None:
        async with retryrmq.connect(url, end_when_refused=True) as client:
            consumers.append(client.consume(queue, dlx=True))
            async for _ in consumers[0]:
                pass

    return lambda: asyncio.run(main()), lambda: bool(consumers and consumers[0]._subscription)


def running_on_threads(url: str, queue: str) -> tuple[Callable[[], Any], Callable[[], bool]]:
    consumer = retryrmq.connect_blocking(url, end_when_refused=True).consume(queue, print, dlx=True)
    return consumer.run, lambda: consumer._subscription is not None


def iterating_on_a_thread(url: str, queue: str) -> tuple[Callable[[], Any], Callable[[], bool]]:
    consumer = retryrmq.connect_blocking(url, end_when_refused=True).consume(queue, dlx=True)
    return lambda: list(consumer), lambda: consumer._subscription is not None


@pytest.mark.parametrize("make", [running_app, running_consumer, iterating, running_on_threads, iterating_on_a_thread])
def test_a_client_may_end_when_it_is_refused(broker: Broker, proxy: Proxy, make: Callable[..., Any]) -> None:
    user = User(broker)
    run, runs = make(user.url(proxy.url), broker.queue())

    def refuse() -> None:
        with contextlib.suppress(AssertionError):
            eventually("it runs", runs)
        user.set_password("new")
        proxy.cut()

    refusing = threading.Thread(target=refuse)
    refusing.start()
    with pytest.raises(retryrmq.AuthenticationFailedError, match=user.name):
        run()
    refusing.join()


def test_a_password_in_a_file_is_read_at_every_connection(broker: Broker, proxy: Proxy, tmp_path: Path) -> None:
    user, secret = User(broker), tmp_path / "secret"
    secret.write_text("old\n")
    url = f"{user.url(proxy.url).replace(':old', ':unused')}?passwordfile={secret}"
    with retryrmq.connect_blocking(url) as client:
        user.set_password("new")
        secret.write_text("new\n")
        proxy.cut()
        eventually("it is back", lambda: client.reconnects >= 2 and client.healthy())


def test_publishing_waits_for_a_connection_as_long_as_it_is_told(broker: Broker) -> None:
    port, queue = free_port(), broker.queue()
    way = Proxy(broker.url, port)
    with retryrmq.connect_blocking(way.url) as client:
        with pytest.raises(retryrmq.InvalidOptionError, match="`timeout` must be longer than 0"):
            client.publish(queue, "never", timeout=timedelta())
        way.close()

        def refused() -> retryrmq.RetryRmqError | None:
            with pytest.raises(retryrmq.RetryRmqError) as error:
                client.publish(queue, "lost", timeout="300ms")
            # Until the client knows that the connection for publishing is lost, not only the other one.
            return None if isinstance(error.value, retryrmq.ConnectionLostError) else error.value

        error = eventually("a message waits for a connection", refused)
        assert isinstance(error, retryrmq.BrokerTimeoutError)
        assert "within its timeout of 300ms: there is no connection" in str(error)
        assert client.trouble()
        # Longer than without a timeout.
        back = threading.Timer(7, lambda: later.append(Proxy(broker.url, port)))
        later: list[Proxy] = []
        back.start()
        client.publish(queue, "late", timeout="2m", mandatory=False)
    back.join()
    later[0].close()
