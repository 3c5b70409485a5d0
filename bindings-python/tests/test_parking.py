"""Parked messages: whose they are, who else holds them, and who may consume their queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import retryrmq
from conftest import Broker, eventually, soon


def declare(broker: Broker, queue: str, **arguments: Any) -> None:
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    broker.api("PUT", f"/queues/%2F/{queue}", {"durable": True, "arguments": {"x-queue-type": "quorum", **named}})


def reject(client: retryrmq.BlockingClient, queue: str) -> None:
    """Has the broker dead-letter one message out of a queue."""
    with client.consume(queue) as consumer:
        for msg in consumer:
            msg.retry("no")
            break


def test_a_reserved_name_is_consumed_when_it_is_said_twice(every_broker: Broker) -> None:
    parking = f"{every_broker.queue()}.parked"
    declare(every_broker, parking)

    async def main() -> None:
        async with retryrmq.connect(every_broker.url) as client:
            await client.publish(parking, b"7")
            with pytest.raises(retryrmq.InvalidOptionError, match="`reserved_name`"):
                client.consume(parking)
            async with client.consume(parking, reserved_name=True) as consumer:
                async for msg in consumer:
                    assert msg.body == b"7"
                    msg.ack()
                    break
                await soon("it is gone", lambda: consumer.stats().acked == 1)

    asyncio.run(main())


def test_what_another_queue_lost_goes_home_or_where_it_is_sent(every_broker: Broker) -> None:
    queue, billing = every_broker.queue(), every_broker.queue("billing")
    declare(every_broker, queue)
    declare(every_broker, f"{queue}.parked")
    declare(every_broker, billing, dead_letter_exchange="", dead_letter_routing_key=f"{queue}.parked")
    with retryrmq.connect_blocking(every_broker.url) as client:
        for body in ("home", "away"):
            client.publish(billing, body, message_id=body)
            reject(client, billing)

        def marks() -> dict[str, str]:
            with client.parked(queue) as parked:
                return {it.message.text(): it.mark for it in parked if it.home == billing and it.by_broker}

        first = eventually("both are parked", lambda: len(found := marks()) == 2 and found)
        assert first == marks()  # wherever they stand now
        assert len(set(first.values())) == 2 and all(len(mark) == 16 for mark in first.values())
        with client.parked(queue) as parked:
            for it in parked:
                if it.message.text() == "home":
                    parked.replay(it)
                else:
                    with pytest.raises(retryrmq.UnroutableError):
                        parked.replay_to(it, f"{queue}.nowhere")
                    parked.replay_to(it, queue)
        for work, body in ((billing, "home"), (queue, "away")):
            with client.consume(work) as consumer:
                for msg in consumer:
                    assert (msg.text(), msg.replays) == (body, 1)
                    msg.ack()
                    break


def test_a_walk_tells_who_else_is_there(every_broker: Broker) -> None:
    queue = every_broker.queue()
    declare(every_broker, f"{queue}.parked", delivery_limit=1_000_000_000)

    async def main() -> None:
        async with retryrmq.connect(every_broker.url) as client:
            for body in ("a", "b"):
                await client.publish(f"{queue}.parked", body)
            async with client.parked(queue) as late:
                assert (len(late), late.others, late.warning) == (2, 0, None)
                async with client.parked(queue) as early:
                    assert [it.message.text() async for it in early] == ["a", "b"]
                    assert (len(early), early.missed) == (0, 0)
                    assert [it async for it in late] == []
                    assert (len(late), late.missed) == (0, 2)
                    async with client.parked(queue) as third:
                        assert (len(third), third.others) == (0, 2)

    asyncio.run(main())


def test_a_walk_warns_of_a_parking_queue_that_may_drop(broker: Broker) -> None:
    queue = broker.queue()
    declare(broker, f"{queue}.parked", max_length=1)
    with retryrmq.connect_blocking(broker.url) as client:
        with client.parked(queue) as parked:
            assert parked.warning is not None and "x-max-length" in parked.warning
        with pytest.raises(retryrmq.ClosedError):
            _ = parked.warning
