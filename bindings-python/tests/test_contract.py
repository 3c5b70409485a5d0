"""The wire contract without a connection."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from copy import deepcopy
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
import retryrmq
from retryrmq.contract import ACK, RUN, RUN_ALONE, Contract, Copy, Drop, Queue

ALL_PROPERTIES = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "delivery_mode": 1,
    "priority": 3,
    "correlation_id": "c",
    "reply_to": "answers",
    "expiration": "60000",
    "message_id": "m",
    "timestamp": datetime(2026, 1, 2, tzinfo=timezone.utc),
    "type": "order",
    "user_id": "guest",
    "app_id": "shop",
}


class Closed(Exception):
    pass


def contract(**options: Any) -> Contract:
    return Contract("orders", **{"dlx": True, "retry": "list(1s, 1m)", **options})


def copied(settlement: object) -> Copy:
    assert isinstance(settlement, Copy)
    return settlement


def arrived(there: Contract, copy: Copy, **delivery: Any) -> retryrmq.Message:
    """The copy, as it comes back from its wait."""
    properties = {name: value for name, value in copy.properties.items() if name != "expiration"}
    return there.read(copy.body, routing_key="orders", headers=copy.headers, properties=properties, **delivery)


def test_a_failed_message_is_copied_with_everything_it_has() -> None:
    there = contract()
    headers = {"trace": "a", "CC": ["other"], "x-death": [{"queue": "orders", "reason": "expired"}]}
    message = there.read(b"7", exchange="shop", routing_key="de", headers=headers, properties=ALL_PROPERTIES)
    assert there.admit(message) is RUN
    copy = copied(there.failed(message, Closed("the till is closed")))
    assert (copy.exchange, copy.routing_key, copy.mandatory, copy.body) == ("", "orders.retry.1000", True, b"7")
    assert copy.delay == timedelta(seconds=1)
    moved = {"user_id", "expiration"}
    assert copy.properties == {k: v for k, v in ALL_PROPERTIES.items() if k not in moved} | {"delivery_mode": 2}
    record = {"x-retry-exchange": "shop", "x-retry-routing-key": "de", "x-retry-count": 1, "x-retry-user-id": "guest"}
    assert copy.headers.items() >= {"trace": "a", "x-retry-expiration": "60000", **record}.items()
    assert copy.headers["x-retry-error"] == "the till is closed"
    assert copy.headers["x-retry-error-type"] == "Closed"
    assert not {"CC", "x-death"} & copy.headers.keys()
    assert copy.event == retryrmq.Retried("orders", "m", 1, timedelta(seconds=1), "the till is closed", "Closed")


def test_a_copy_is_plain_data() -> None:
    there = contract()
    copy = copied(there.failed(there.read(b"7", routing_key="orders"), Closed("no")))
    assert pickle.loads(pickle.dumps(copy)) == copy == deepcopy(copy)
    assert asdict(copy)["routing_key"] == "orders.retry.1000" and "_decision" not in asdict(copy)


def test_a_message_is_parked_with_its_record_when_no_retries_are_left() -> None:
    there = contract(retry="fixed(1s, retries=1)")
    message = there.read(b"7", exchange="shop", routing_key="de")
    again = arrived(there, copied(there.failed(message, Closed("first"))))
    assert (again.attempt, again.exchange, again.last_error) == (2, "shop", "first")
    parked = copied(there.failed(again, Closed("second")))
    assert (parked.routing_key, parked.delay) == ("orders.parked", None)
    assert parked.headers["x-retry-parked-reason"] == "exhausted"
    assert [entry["error"] for entry in parked.headers["x-retry-history"]] == ["first", "second"]
    assert isinstance(parked.event, retryrmq.Parked)


@pytest.mark.parametrize(
    ("error", "queue", "reason"),
    [
        (retryrmq.RetryAfter("3s"), "orders.retry.3200", None),
        (retryrmq.Defer("2s"), "orders.retry.2000", None),
        (retryrmq.Park("not ours"), "orders.parked", "requested"),
        (retryrmq.Undecodable("no JSON"), "orders.parked", "undecodable"),
        (KeyError("id"), "orders.parked", "fatal"),
    ],
)
def test_signals_mean_what_they_mean_elsewhere(error: Exception, queue: str, reason: str | None) -> None:
    there = contract(fatal=KeyError)
    copy = copied(there.failed(there.read(b"7"), error))
    assert (copy.routing_key, copy.headers.get("x-retry-parked-reason")) == (queue, reason)
    if queue == "orders.retry.3200":
        assert copy.properties["expiration"] == "3000"
    declared = there.declaration(queue)
    assert declared is not None and declared.name == queue


def test_crashes_are_counted_and_a_suspect_runs_alone() -> None:
    there = contract()
    crashed = there.read(b"7", redelivered=True)
    detour = copied(there.admit(crashed))
    assert (detour.routing_key, detour.headers["x-retry-crashes"]) == ("orders.retry.1000", 1)
    assert there.admit(there.read(b"7", headers={"x-retry-crashes": 2})) is RUN
    suspect = there.read(b"7", headers={"x-retry-crashes": 3})
    assert there.admit(suspect) is RUN_ALONE
    assert copied(there.detour(suspect)).headers["x-retry-crashes"] == 3
    poison = copied(there.admit(there.read(b"7", headers={"x-retry-crashes": 10})))
    assert poison.headers["x-retry-parked-reason"] == "delivery-limit"


def test_success_is_acknowledged_and_without_park_so_is_what_is_given_up() -> None:
    there = contract(park=False)
    message = there.read(b"7")
    assert there.done(message) is ACK
    dropped = there.failed(message, retryrmq.Park("no"))
    assert isinstance(dropped, Drop) and isinstance(dropped.event, retryrmq.Parked)


def test_header_values_survive_as_far_as_a_client_can_tell_them_apart() -> None:
    there = contract()
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    kept = {
        "t": True,
        "l": -5,
        "d": 0.5,
        "D": Decimal("3.14"),
        "S": "a",
        "T": at,
        "A": [1, "a", [None]],
        "F": {"a": {"b": 1}},
        "V": None,
        "x": b"\0",
    }
    given = {**kept, "x": bytearray(b"\0"), "naive": at.replace(tzinfo=None), "debt": Decimal("-1.5"), "large": 2**64}
    copy = copied(there.failed(there.read(b"7", headers=given), Closed("no")))
    assert copy.headers.items() >= {**kept, "naive": at, "debt": "-1.5", "large": str(2**64)}.items()
    for tag in (
        b"\x01tt\x01",
        b"\x01ll" + (-5).to_bytes(8, "big", signed=True),
        b"\x01DD\x02\0\0\x01\x3a",
        b"\x01VV",
        b"\x01xx\0\0\0\x01\0",
    ):
        assert tag in copy.table
    assert b"\x0dx-retry-countl" in copy.table


def test_the_topology_is_that_of_a_consumer() -> None:
    parking, work, *waiting = contract(queue_type="classic").topology()
    assert parking == Queue("orders.parked", {"x-queue-type": "classic"}, exact=False, create=True)
    assert (work.name, work.create) == ("orders", True)
    arguments = {
        "x-queue-type": "classic",
        "x-message-ttl": 1000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "orders",
    }
    assert waiting[0] == Queue("orders.retry.1000", arguments, exact=True, create=True)
    work = contract(work_queue="existing").topology()[0]
    assert (work.name, work.create) == ("orders", False)
    assert contract().declaration("orders") is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dlx": False, "retry": None}, "`dlx`"),
        ({"strategy": "native", "retry": "fixed(5s)"}, "`retry-queues`"),
        ({"prefetch": 3}, "no option `prefetch`"),
        ({"retry": "fixed(5)"}, "fixed"),
        ({"queue_type": "stream"}, "stream"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(retryrmq.RetryRmqError, match=says) as refused:
        contract(**options)
    assert isinstance(refused.value, ValueError | TypeError)


def test_unknown_properties_are_refused() -> None:
    with pytest.raises(ValueError, match="no property `ttl`"):
        contract().read(b"7", properties={"ttl": 5})


def test_importing_the_package_imports_no_framework() -> None:
    frameworks = ["aio_pika", "faststream", "celery", "kombu", "pika"]
    code = f"import json, sys, retryrmq, retryrmq.contract; print(json.dumps([m for m in {frameworks} if m in sys.modules]))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert json.loads(said) == []


@pytest.mark.parametrize("wrap", [lambda value: {"k": value}, lambda value: [value]], ids=["tables", "lists"])
@pytest.mark.parametrize("levels", [32, 33, 400])
def test_what_is_nested_too_deep_becomes_text(wrap: Any, levels: int) -> None:
    value: Any = 7
    for _ in range(levels):
        value = wrap(value)
    contract = Contract("orders", dlx=True)
    found = contract.read(b"7", headers={"deep": value}).headers["deep"]
    for _ in range(32):
        found = found["k"] if isinstance(found, dict) else found[0]
    assert found == 7 if levels == 32 else isinstance(found, str)
    assert isinstance(contract.failed(contract.read(b"7", headers={"deep": value}), ValueError("no")), Copy)
