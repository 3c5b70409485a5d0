"""Headers of every AMQP type, both ways; bodies that are not what they should be."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone, tzinfo
from decimal import Decimal, Inexact, Rounded, localcontext
from typing import Any

import pytest
import retryrmq
from conftest import Broker
from retryrmq.testing import simulate_blocking

HEADERS: dict[str, Any] = {
    "yes": True,
    "zero": 0,
    "least": -(2**63),
    "most": 2**63 - 1,
    "half": 0.5,
    "money": Decimal("3.14"),
    "big money": Decimal("42949672.95"),
    "text": "Grüße 🐇",
    "empty": "",
    "bytes": b"\x00\xff",
    "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
    "list": [1, "two", [3.0, None], {"four": 4}],
    "table": {"inner": {"deeper": [True]}},
    "nothing": None,
}


def seen(**message: Any) -> retryrmq.Message:
    """The message as a handler gets it."""
    app = retryrmq.App("amqp://localhost")
    app.consume("orders")(lambda msg: None)
    result = simulate_blocking(app, "orders", [{"body": b"", **message}])
    return result.attempts[0].message


def test_every_type_comes_back() -> None:
    headers = seen(headers=HEADERS).headers
    assert headers == HEADERS
    assert {name: type(value) for name, value in headers.items()} == {
        name: type(value) for name, value in HEADERS.items()
    }


def test_every_type_survives_the_broker_and_a_retry(every_broker: Broker) -> None:
    queue = every_broker.queue()
    found: list[dict[str, Any]] = []
    with (
        retryrmq.connect_blocking(every_broker.url) as client,
        client.consume(queue, dlx=True, retry="fixed(100ms, retries=1)") as consumer,
    ):
        client.publish(queue, b"", headers=HEADERS)
        for msg in consumer:
            found.append(dict(msg.headers))
            if msg.attempt == 2:
                msg.ack()
                break
            msg.retry("again")
    for headers in found:
        ours = {name: value for name, value in headers.items() if name in HEADERS}
        assert ours == HEADERS
        assert {name: type(value) for name, value in ours.items()} == {
            name: type(value) for name, value in HEADERS.items()
        }


def test_a_message_is_converted_when_it_is_read() -> None:
    message = seen(body=b"7", headers={"table": {"inner": [1]}})
    for read in ("body", "headers"):
        assert getattr(message, read) is getattr(message, read)  # once
    message.headers["own"] = object()  # what a handler puts there is its own affair


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        (2**63, ValueError, "64-bit"),
        (object(), TypeError, "not object"),
        ({1: 2}, TypeError, "must be a str"),
        ([1, {"deep": object()}], TypeError, "not object"),
        (Decimal("-1"), ValueError, "decimals"),
        (Decimal("NaN"), ValueError, "decimals"),
        (Decimal(2**32), ValueError, "decimals"),
        (Decimal("1E+10"), ValueError, "decimals"),
        (Decimal("1E-256"), ValueError, "decimals"),
        (Decimal("4294967295.99"), ValueError, "decimals"),
        (datetime(2026, 1, 1), ValueError, "time zone"),
        (datetime(1900, 1, 1, tzinfo=timezone.utc), ValueError, "before 1970"),
        (float("nan"), ValueError, "NaN"),
    ],
)
def test_what_amqp_cannot_say_is_refused_with_its_place(value: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind) as refused:
        seen(headers={"outer": value})
    assert says in str(refused.value)
    assert isinstance(refused.value, retryrmq.RetryRmqError)


@pytest.mark.parametrize("number", ["123456.78", "4294967295", "0.00001234567", "1.50", "0", "0E-200", "12E+3"])
def test_decimals_are_not_rounded_by_anybody(number: str) -> None:
    decimal = Decimal(number)
    with localcontext() as context:
        # The caller's own affair, and of no concern to what it sends and reads.
        context.prec, context.Emax, context.Emin = 2, 2, -2
        context.traps[Inexact] = context.traps[Rounded] = True
        found = seen(headers={"d": decimal}).headers["d"]
    assert found == decimal
    assert found.as_tuple().exponent == min(int(decimal.as_tuple().exponent), 0)


def test_nesting_without_end_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ValueError, match="nested"):
        seen(headers={"deep": deep})
    with pytest.raises(ValueError, match="255"):
        seen(headers={"x" * 256: 1})
    circle: dict[str, Any] = {}
    circle["again"] = circle
    with pytest.raises(ValueError, match="nested"):
        seen(headers={"circle": circle})


class Meddling(tzinfo):
    """A time zone that changes what holds it: reading a time runs Python code."""

    def __init__(self, holder: Any) -> None:
        self.holder = holder

    def utcoffset(self, _: datetime | None) -> timedelta:
        if isinstance(self.holder, list):
            self.holder.append(self.holder[0])
        else:
            self.holder[f"new {len(self.holder)}"] = 1
        return timedelta()

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "meddling"


def test_headers_that_change_while_they_are_read_are_sent_as_they_were() -> None:
    table: dict[str, Any] = {}
    array: list[Any] = []
    table.update(when=datetime(2026, 1, 1, tzinfo=Meddling(table)), last=1)
    array.extend([datetime(2026, 1, 1, tzinfo=Meddling(array)), 1])
    found = seen(headers={"table": table, "list": array}).headers
    when = datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert found == {"table": {"when": when, "last": 1}, "list": [when, 1]}
    assert len(table) > 2 and len(array) > 2


def test_a_body_that_is_no_text_and_no_json() -> None:
    message = seen(body=b"\xff\x00")
    assert message.body == b"\xff\x00"
    assert message.body is message.body
    with pytest.raises(UnicodeDecodeError):
        message.text()
    with pytest.raises(ValueError):
        message.json()
    with pytest.raises(json.JSONDecodeError):
        seen(body=b"{").json()
    assert seen(body='{"a": [1]}').json() == {"a": [1]}
    assert seen(body=bytearray(b"7")).text() == "7"
    assert bool(seen(body=b"")) and len(seen(body=b"abc")) == 3


def test_properties_by_their_names() -> None:
    given = {
        "message_id": "7",
        "content_type": "text/plain",
        "content_encoding": "identity",
        "correlation_id": "c",
        "reply_to": "r",
        "priority": 3,
        "timestamp": datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
        "type": "t",
        "app_id": "a",
        "user_id": "guest",
    }
    message = seen(**given, expiration="1m")
    assert message.properties == {**given, "expiration": "60000", "delivery_mode": 2}
    assert message.message_id == "7"
    with pytest.raises(ValueError, match="255"):
        seen(message_id="x" * 256)
