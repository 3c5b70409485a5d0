"""What a missing work queue is made with. A plain client of Python declares it as well."""

from __future__ import annotations

import asyncio
from typing import Any

import pika
import pytest
import retryrmq
from conftest import Broker, eventually
from pika.exceptions import ChannelClosedByBroker


def declare(broker: Broker, queue: str, arguments: dict[str, Any]) -> None:
    """Like any publisher."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        connection.channel().queue_declare(queue, durable=True, arguments=arguments)


def queues(broker: Broker, queue: str) -> list[str]:
    names = [found["name"] for found in broker.api("GET", "/queues/%2F?columns=name")]
    # The clock of new queues goes by itself.
    return [name for name in names if name.startswith(queue) and not name.endswith(".retry.80000000000")]


ARGUMENTS: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    ({}, {}, {"x-max-priority": 10}),
    (
        {"x-max-priority": 10, "x-queue-mode": "lazy", "x-single-active-consumer": True},
        {"x-max-priority": 10, "x-queue-mode": "lazy", "x-single-active-consumer": True},
        {"x-max-priority": 10},
    ),
    ('{"x-max-priority": 10}', {"x-max-priority": 10}, {}),
]


@pytest.mark.parametrize(("work_queue", "arguments", "others"), ARGUMENTS, ids=["none", "some", "as text"])
def test_it_is_made_with_exactly_these_arguments(
    every_broker: Broker, work_queue: Any, arguments: dict[str, Any], others: dict[str, Any]
) -> None:
    queue = every_broker.queue()
    attempts: list[int] = []

    def handle(msg: retryrmq.Message) -> None:
        attempts.append(msg.attempt)
        if msg.attempt == 1:
            raise ValueError("once")

    with (
        retryrmq.connect_blocking(every_broker.url) as client,
        client.consume(queue, handle, dlx=True, retry="fixed(50ms, retries=1)", work_queue=work_queue),
    ):
        declare(every_broker, queue, arguments)
        with pytest.raises(ChannelClosedByBroker) as refused:
            declare(every_broker, queue, others)
        assert refused.value.reply_code == 406
        client.publish(queue, "a")
        eventually("it fails, waits and comes back", lambda: attempts[:2] == [1, 2])


@pytest.mark.parametrize("work_queue", ["quorum", "classic"])
def test_it_is_made_of_a_type(broker: Broker, work_queue: Any) -> None:
    queue = broker.queue()
    with (
        retryrmq.connect_blocking(broker.url) as client,
        client.consume(queue, print, dlx=True, work_queue=work_queue),
    ):
        made = broker.api("GET", f"/queues/%2F/{queue}")["arguments"]
        assert (made["x-queue-type"], made["x-dead-letter-routing-key"]) == (work_queue, f"{queue}.parked")


@pytest.mark.parametrize("form", ["blocking", "async", "app"])
def test_one_that_is_said_to_exist_is_never_made(every_broker: Broker, form: str) -> None:
    queue = every_broker.queue()
    options: Any = {"dlx": True, "work_queue": "existing"}

    def consume() -> None:
        with (
            retryrmq.connect_blocking(every_broker.url) as client,
            client.consume(queue, print, **options),
        ):
            pass

    async def consume_async() -> None:
        async with (
            retryrmq.connect(every_broker.url) as client,
            client.consume(queue, print, **options),
        ):
            pass

    async def serve() -> None:
        app = retryrmq.App(every_broker.url)
        app.consume(queue, **options)(print)
        async with app:
            pass

    run = consume if form == "blocking" else lambda: asyncio.run(consume_async() if form == "async" else serve())
    with pytest.raises(retryrmq.QueueNotFoundError, match="`work_queue` is `existing`"):
        run()
    assert queues(every_broker, queue) == []
    declare(every_broker, queue, {"x-max-priority": 3})
    run()
    assert f"{queue}.parked" in queues(every_broker, queue)


def test_one_that_is_deleted_is_not_made_again_unless_asked_for(
    every_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    queue = every_broker.queue()
    declare(every_broker, queue, {})
    handled: list[str] = []

    def lines() -> list[str]:
        return [it.getMessage() for it in caplog.records]

    with (
        retryrmq.connect_blocking(every_broker.url) as client,
        client.consume(queue, lambda msg: handled.append(msg.text()), dlx=True),
    ):
        every_broker.api("DELETE", f"/queues/%2F/{queue}")
        eventually("it is missed", lambda: [it for it in lines() if "cannot consume" in it and queue in it])
        assert queue not in queues(every_broker, queue)
        # Its owner makes it anew, with other arguments than ours.
        declare(every_broker, queue, {"x-max-priority": 3})
        client.publish(queue, "a")
        eventually("it is consumed again", lambda: handled == ["a"])
