"""Publishing, and what a broker refuses."""

from __future__ import annotations

import asyncio

import pytest
import retryrmq
from conftest import Broker, eventually
from proxy import Proxy


def test_messages_are_sent_in_the_order_of_the_calls(broker: Broker) -> None:
    queue = broker.queue()

    async def main() -> None:
        async with retryrmq.connect(broker.url) as client:
            async with client.consume(queue, dlx=True) as consumer:
                await asyncio.gather(*(client.publish(queue, str(number)) for number in range(200)))
                seen: list[str] = []
                async for msg in consumer:
                    seen.append(msg.text())
                    msg.ack()
                    if len(seen) == 200:
                        break
            assert seen == [str(number) for number in range(200)]

    asyncio.run(main())


def test_what_no_queue_takes_is_an_error(broker: Broker) -> None:
    queue = broker.queue()
    with retryrmq.connect_blocking(broker.url) as client:
        with pytest.raises(retryrmq.UnroutableError) as refused:
            client.publish(queue, "a")
        assert refused.value.code == "unroutable"
        assert f"there is no queue `{queue}`" in str(refused.value)
        client.publish(queue, "a", mandatory=False)
        with pytest.raises(retryrmq.QueueNotFoundError):
            client.publish(queue, "a", delay="1s")
        with pytest.raises(ValueError, match="queue as its target"):
            client.publish(queue, "a", exchange="amq.topic", delay="1s")
        with pytest.raises(retryrmq.QueueNotFoundError), client.parked(queue):
            pass
        with pytest.raises(retryrmq.QueueNotFoundError), client.consume(queue):
            pass


def test_a_delayed_message_comes_later(broker: Broker) -> None:
    queue = broker.queue()
    with retryrmq.connect_blocking(broker.url) as client, client.consume(queue, dlx=True) as consumer:
        client.publish(queue, "later", delay="100ms")
        for msg in consumer:
            assert msg.text() == "later" and msg.attempt == 1
            msg.ack()
            break


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda url: url.replace("guest:guest", "guest:sesame"), retryrmq.AuthenticationFailedError),
        (lambda url: url.rpartition("/")[0] + "/nowhere", retryrmq.VhostNotFoundError),
        (lambda url: "amqp://guest:sesame@127.0.0.1:1", retryrmq.UnreachableError),
    ],
)
def test_a_connection_that_fails_says_why_and_not_the_password(
    broker: Broker, change: object, kind: type[retryrmq.RetryRmqError]
) -> None:
    with pytest.raises(kind) as refused:
        retryrmq.connect_blocking(change(broker.url))  # type: ignore[operator]
    assert "sesame" not in str(refused.value) + refused.value.detail + repr(refused.value)

    async def main() -> None:
        await retryrmq.connect(change(broker.url))  # type: ignore[operator]

    with pytest.raises(kind):
        asyncio.run(main())


def test_a_strategy_that_the_broker_cannot_serve_is_refused_with_another(broker: Broker) -> None:
    queue = broker.queue()
    app = retryrmq.App(broker.url)
    app.consume(queue, dlx=True, strategy="delayed-exchange")(print)
    with pytest.raises(retryrmq.StrategyRefusedError, match="retry-queues"):
        asyncio.run(app.serve())


def test_a_publish_that_was_cancelled_harms_nobody(broker: Broker) -> None:
    queue, proxy = broker.queue(), Proxy(broker.url)

    async def main() -> None:
        async with retryrmq.connect(proxy.url) as client:
            async with client.consume(queue, dlx=True):
                pass
            proxy.hold_up(proxy.connections)  # otherwise it may be confirmed before it is cancelled
            publishing = asyncio.ensure_future(client.publish(queue, "a"))
            await asyncio.sleep(0)
            publishing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await publishing
            proxy.go_on()
            await client.publish(queue, "b")

    asyncio.run(main())
    proxy.close()
    with retryrmq.connect_blocking(broker.url) as client, client.consume(queue, dlx=True) as consumer:
        for msg in consumer:
            msg.ack()
            if msg.text() == "b":
                break
        eventually("all is settled", lambda: consumer.stats().outstanding == 0)
