"""A handler tested with its real policy and no broker: ``pytest testing_without_a_broker.py``."""

from collections.abc import Callable
from datetime import timedelta

import pytest
import retryrmq
from retryrmq.testing import Simulated

app = retryrmq.App()
Simulate = Callable[..., Simulated]
stock = {"chair": 0}


@app.consume("orders", dlx=True, retry="fixed(1m, retries=3)", fatal=(ValueError,))
def handle(msg: retryrmq.Message) -> None:
    item = msg.json()["item"]
    if not stock[item]:
        raise RuntimeError(f"no {item} in stock")
    stock[item] -= 1


def test_an_order_waits_for_the_stock(simulate_app: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stock, "chair", 1)
    result = simulate_app(app, "orders", ['{"item": "chair"}', '{"item": "chair"}'])
    assert [end.became for end in result.ends] == ["acked", "parked"]


def test_it_is_parked_after_three_minutes(simulate_app: Simulate) -> None:
    result = simulate_app(app, "orders", ['{"item": "chair"}'])
    (parked,) = result.parked
    assert (parked.reason, parked.at) == ("exhausted", timedelta(minutes=3))
    assert [attempt.at for attempt in result.attempts] == [timedelta(minutes=n) for n in range(4)]
    assert parked.message is not None and parked.message.last_error == "no chair in stock"


def test_garbage_is_parked_at_once(simulate_app: Simulate) -> None:
    result = simulate_app(app, "orders", [b"\xff"])
    assert result.parked[0].reason == "fatal"
    assert len(result.attempts) == 1
