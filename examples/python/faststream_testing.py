"""The handlers of faststream_orders.py without a broker: ``pytest faststream_testing.py``."""

import asyncio

import pytest
import retryrmq
from faststream import AckPolicy
from faststream.rabbit import RabbitBroker, TestRabbitBroker
from retryrmq.faststream import RetryMiddleware

events: list[retryrmq.Event] = []
retries = RetryMiddleware(dlx=True, retry="list(1m, 1h)", on_event=events.append)
broker = RabbitBroker(middlewares=[retries], ack_policy=AckPolicy.MANUAL)


@broker.subscriber("orders")
async def handle(order: dict[str, int]) -> None:
    raise ConnectionError("the till is closed")


# ANCHOR: test
def test_an_order_is_parked_after_two_retries() -> None:
    async def run() -> None:
        async with TestRabbitBroker(broker) as test:
            with pytest.raises(ConnectionError):
                await test.publish({"id": 7}, "orders", headers={"x-retry-count": 2})

    asyncio.run(run())
    assert isinstance(events[0], retryrmq.Parked)
    assert events[0].reason == "exhausted"
    # ANCHOR_END: test
