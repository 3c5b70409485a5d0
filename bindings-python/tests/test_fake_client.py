"""The client without a broker: what it keeps, whom it calls, and what it refuses as the real one does."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
import retryrmq
from retryrmq.testing import FakeClient


def test_it_keeps_what_is_published() -> None:
    fake = FakeClient()

    async def main() -> None:
        async with fake as client:
            await client.publish("orders", '{"id": 7}', headers={"tenant": "a"}, message_id="m-7", priority=3)
            await client.publish("created", b"\x00", exchange="events", mandatory=False)
            await client.publish("orders", "later", delay="5m")

    asyncio.run(main())
    first, second, third = fake.published
    message = first.message
    assert (message.exchange, message.routing_key, message.json()) == ("", "orders", {"id": 7})
    assert (message.headers, message.message_id) == ({"tenant": "a"}, "m-7")
    assert message.properties["priority"] == 3
    assert (second.message.exchange, second.message.body) == ("events", b"\x00")
    assert [published.delay for published in fake.published] == [None, None, timedelta(minutes=5)]
    assert (third.index, third.at, third.message.text()) == (None, timedelta(), "later")


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("orders", {"id": 7}), {}, retryrmq.InvalidTypeError),
        (("orders", "x"), {"prioritty": 3}, retryrmq.InvalidTypeError),
        (("orders", "x"), {"priority": 256}, retryrmq.InvalidOptionError),
        (("orders", "x"), {"exchange": "events", "delay": "1s"}, retryrmq.InvalidOptionError),
        (("orders", "x"), {"message_id": "x" * 256}, retryrmq.RetryRmqError),
        (("q" * 256, "x"), {}, retryrmq.TooLargeError),
        (("orders", "x"), {"headers": {"bad": object()}}, retryrmq.InvalidTypeError),
    ],
)
@pytest.mark.parametrize("is_blocking", [False, True])
def test_it_refuses_arguments(
    arguments: Any, options: dict[str, Any], error: type[Exception], is_blocking: bool
) -> None:
    fake = FakeClient()
    fake.publish_error = retryrmq.UnreachableError("no broker")  # is not asked for
    with pytest.raises(error) as raised:
        if is_blocking:
            fake.blocking.publish(*arguments, **options)
        else:
            asyncio.run(fake.publish(*arguments, **options))
    assert not isinstance(raised.value, retryrmq.UnreachableError)
    assert fake.published == []


def test_options_of_consumers_are_checked() -> None:
    fake = FakeClient()
    with pytest.raises(retryrmq.InvalidOptionError, match="`retry` needs `dlx`"):
        fake.consume("orders", print, retry="fixed(1s)")
    with pytest.raises(retryrmq.InvalidPolicyError):
        fake.blocking.consume("orders", print, dlx=True, retry="hope")
    with pytest.raises(retryrmq.InvalidOptionError, match="`orders`"):
        fake.consume("orders.parked", print)


def test_a_handler_gets_what_is_delivered_with_its_real_policy() -> None:
    async def main() -> None:
        fake = FakeClient()

        async def handle(msg: retryrmq.Message) -> None:
            if msg.attempt == 1:
                raise ConnectionError("no answer")
            await fake.publish("shipped", msg.body, delay="1m")

        options: Any = {"dlx": True, "retry": "fixed(10s, retries=2)"}
        async with fake.consume("orders", handle, **options) as consumer:
            result = await fake.deliver("orders", "7", headers={"tenant": "a"})
            assert [attempt.became for attempt in result.attempts] == ["retried", "acked"]
            assert result.attempts[1].message.headers["tenant"] == "a"
            assert (result.elapsed, len(result.published)) == (timedelta(seconds=10), 1)
            assert fake.published == result.published
            assert (fake.published[0].index, fake.published[0].at) == (0, timedelta(seconds=10))
            stats = consumer.stats()
            assert (stats.delivered, stats.failed, stats.retried, stats.acked) == (2, 1, 1, 1)
        with pytest.raises(retryrmq.InvalidOptionError, match="no handler for `queue` 'orders'"):
            await fake.deliver("orders", "7")
        with pytest.raises(retryrmq.ClosedError):
            await consumer.start()

    asyncio.run(main())


def test_run_returns_when_the_consumer_or_the_client_is_closed() -> None:
    async def main() -> None:
        fake = FakeClient()
        for end in (lambda consumer: consumer.close(), lambda _: fake.close()):
            consumer = fake.consume("orders", lambda msg: None)
            running = asyncio.create_task(consumer.run())
            while not (await asyncio.sleep(0)) and "consuming" not in fake_state(fake):
                pass
            await end(consumer)
            await asyncio.wait_for(running, 30)
        with pytest.raises(retryrmq.ClosedError):
            await fake.publish("orders", "x")
        assert not fake.healthy()

    def fake_state(fake: FakeClient) -> str:
        return "consuming" if fake._fake.consumers else ""

    asyncio.run(main())


def test_a_closed_client_starts_no_consumer() -> None:
    async def main() -> None:
        fake = FakeClient()
        consumer, blocking = fake.consume("orders", lambda msg: None), fake.blocking.consume("orders", lambda msg: None)
        await fake.close()
        with pytest.raises(retryrmq.ClosedError, match="the client is closed"):
            await consumer.start()
        with pytest.raises(retryrmq.ClosedError, match="the client is closed"):
            await asyncio.wait_for(consumer.run(), 30)
        with pytest.raises(retryrmq.ClosedError, match="the client is closed"):
            blocking.start()

    asyncio.run(main())


class _Held:
    """A handler that publishes when it is let go."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.begun, self.let_go = asyncio.Event(), asyncio.Event()

    async def __call__(self, msg: retryrmq.Message) -> None:
        self.begun.set()
        await self.let_go.wait()
        await self.client.publish("shipped", msg.body)


async def _a_few_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_closing_a_consumer_waits_for_its_running_delivery() -> None:
    async def main() -> None:
        fake = FakeClient()
        handle = _Held(fake)
        consumer = await fake.consume("orders", handle).start()
        running = asyncio.create_task(consumer.run())
        delivery = asyncio.create_task(fake.deliver("orders", "7"))
        await handle.begun.wait()
        closing = asyncio.create_task(consumer.close())
        await _a_few_turns()
        assert not closing.done()
        assert not running.done()
        with pytest.raises(retryrmq.InvalidOptionError, match="no handler for `queue` 'orders'"):
            await fake.deliver("orders", "8")
        handle.let_go.set()
        await asyncio.wait_for(asyncio.gather(closing, running), 30)
        assert (consumer.stats().acked, len(fake.published)) == (1, 1)
        assert (await delivery).acked

    asyncio.run(main())


def test_an_app_publishes_while_its_deliveries_end() -> None:
    app = retryrmq.App("amqp://127.0.0.1:1", wait=False)
    handle = _Held(app)
    app.consume("orders")(handle)

    async def let_go_later() -> None:
        await _a_few_turns()
        handle.let_go.set()

    async def main() -> None:
        fake = FakeClient()
        with fake.replace(app):
            async with app:
                delivery = asyncio.create_task(fake.deliver("orders", "7"))
                await handle.begun.wait()
                letting_go = asyncio.create_task(let_go_later())
            await letting_go
            assert (await delivery).acked
            assert len(fake.published) == 1

    asyncio.run(main())


def test_closing_waits_no_longer_than_the_drain_timeout_and_stop_not_at_all() -> None:
    async def main() -> None:
        fake = FakeClient()
        for end in ("close", "stop"):
            handle = _Held(fake)
            consumer = await fake.consume("orders", handle, drain_timeout="10ms" if end == "close" else "1h").start()
            delivery = asyncio.create_task(fake.deliver("orders", "7"))
            await handle.begun.wait()
            if end == "close":
                await asyncio.wait_for(consumer.close(), 30)
            else:
                consumer.stop()
            await asyncio.wait_for(consumer.wait_closed(), 30)
            assert not delivery.done()
            handle.let_go.set()
            await delivery

    asyncio.run(main())


def test_a_client_closes_at_once_and_run_waits_for_the_running_delivery() -> None:
    async def main() -> None:
        fake = FakeClient()
        handle = _Held(fake)
        consumer = await fake.consume("orders", handle).start()
        running = asyncio.create_task(consumer.run())
        delivery = asyncio.create_task(fake.deliver("orders", "7"))
        await handle.begun.wait()
        await asyncio.wait_for(fake.close(), 30)
        await _a_few_turns()
        assert not running.done()
        handle.let_go.set()
        await asyncio.wait_for(running, 30)
        assert isinstance((await delivery).attempts[0].error, retryrmq.ClosedError)

    asyncio.run(main())


def test_a_handler_may_close_its_own_consumer() -> None:
    async def main() -> None:
        fake = FakeClient()

        async def handle(msg: retryrmq.Message) -> None:
            await asyncio.create_task(consumer.close())
            await fake.publish("shipped", msg.body)

        consumer = await fake.consume("orders", handle, drain_timeout="1h").start()
        assert (await asyncio.wait_for(fake.deliver("orders", "7"), 30)).acked
        await asyncio.wait_for(consumer.wait_closed(), 30)
        assert len(fake.published) == 1

    asyncio.run(main())


def test_closing_a_consumer_of_threads_waits_for_its_running_delivery() -> None:
    fake = FakeClient()
    client, begun, let_go = fake.blocking, threading.Event(), threading.Event()

    def handle(msg: retryrmq.Message) -> None:
        begun.set()
        assert let_go.wait(30)
        client.publish("done", msg.text())

    consumer = client.consume("orders", handle).start()
    delivering = threading.Thread(target=fake.deliver_blocking, args=("orders", "7"))
    delivering.start()
    assert begun.wait(30)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    while fake._fake.consumers:
        assert closing.is_alive()
    assert closing.is_alive()
    let_go.set()
    closing.join(30)
    assert not closing.is_alive()
    assert (consumer.stats().acked, len(fake.published)) == (1, 1)
    delivering.join(30)

    own = client.consume("own", lambda msg: own.close(), drain_timeout="1h").start()
    assert fake.deliver_blocking("own", "8").acked


def test_threads_share_its_messages_and_handlers() -> None:
    fake = FakeClient()
    client, handled = fake.blocking, []

    def handle(msg: retryrmq.Message) -> None:
        handled.append(msg.text())
        client.publish("done", msg.text())

    with client.consume("orders", handle, dlx=True):
        assert fake.deliver_blocking("orders", "7").acked
    consumer = client.consume("orders", handle)
    thread = threading.Thread(target=consumer.run)
    thread.start()
    while not fake._fake.consumers:
        assert thread.is_alive()
    assert not fake.deliver_blocking("orders", "8").parked
    client.close()
    thread.join(30)
    assert not thread.is_alive()
    assert (handled, [published.message.text() for published in fake.published]) == (["7", "8"], ["7", "8"])


def test_middleware_surrounds_publishes_and_attempts() -> None:
    seen: list[str] = []

    async def around(what: Any, call_next: Any) -> Any:
        seen.append(type(what).__name__)
        return await call_next(what)

    async def main() -> None:
        fake = FakeClient(middleware=[around], publish_middleware=[around])

        async def handle(msg: retryrmq.Message) -> None:
            await fake.publish("done", b"")

        async with fake.consume("orders", handle):
            await fake.deliver("orders", "x")
        assert len(fake.published) == 1

    asyncio.run(main())
    assert seen == ["Message", "Publishing"]


def test_an_app_runs_without_a_broker() -> None:
    seen: list[str] = []

    async def around(what: Any, call_next: Any) -> Any:
        seen.append(type(what).__name__)
        return await call_next(what)

    # Nothing listens there.
    app = retryrmq.App("amqp://127.0.0.1:1", wait=False, publish_middleware=[around])

    @app.consume("orders", dlx=True)
    async def handle(msg: retryrmq.Message) -> None:
        await app.publish("shipped", msg.body)

    async def main() -> None:
        fake = FakeClient()
        with fake.replace(app):
            for _ in range(2):
                async with app:
                    await app.publish("orders", "7")
                    assert app.healthy()
                    fake.publish_error = retryrmq.NotConfirmedError("no")
                    assert not app.healthy()
                    with pytest.raises(retryrmq.NotConfirmedError):
                        await app.publish("orders", "8")
                    fake.publish_error = None
                    assert (await fake.deliver("orders", "7")).acked
                    assert app.stats()["orders"].acked
                with pytest.raises(retryrmq.ClosedError):
                    await app.publish("orders", "9")
            assert (await fake.deliver("orders", "7")).acked  # the app need not run
            assert [published.message.routing_key for published in fake.published] == ["orders", "shipped"] * 2 + [
                "shipped"
            ]
            with pytest.raises(retryrmq.ClosedError), FakeClient().replace(app):
                pass
            serving = asyncio.create_task(app.serve())
            while not app.healthy():
                await asyncio.sleep(0)
            app.stop()
            await asyncio.wait_for(serving, 30)
        with pytest.raises(retryrmq.UnreachableError):
            async with app:
                pass

    asyncio.run(main())
    assert seen.count("Publishing") >= 4


def test_it_says_what_it_has_not() -> None:
    async def main() -> None:
        fake = FakeClient()
        with pytest.raises(retryrmq.ClosedError, match="needs a broker"):
            async with fake.parked("orders"):
                pass
        with pytest.raises(retryrmq.InvalidTypeError, match="only to a handler"):
            await fake.consume("orders").start()
        with pytest.raises(retryrmq.InvalidTypeError, match=r"await fake\.deliver"):
            fake.deliver_blocking("orders", "x")
        with pytest.raises(retryrmq.InvalidTypeError):
            fake.publish_error = "no"  # type: ignore[assignment]
        with pytest.raises(retryrmq.InvalidTypeError), fake.replace("app"):  # type: ignore[arg-type]
            pass
        assert fake.metrics_text() == "# EOF\n"
        assert fake.server["product"] == "fake"

    asyncio.run(main())
