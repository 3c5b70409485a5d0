"""Tests without a broker: handlers on a virtual clock, and a client that keeps what is published.

A handler with its real policy, rules, limits and headers::

    async def test_a_bad_order_is_parked():
        result = await simulate(app, "orders", [b"not json"])
        assert result.parked[0].reason == "exhausted"
        assert result.elapsed == timedelta(seconds=341)

An endpoint that publishes::

    def test_an_order_is_published():
        fake = FakeClient()
        with fake.replace(app), TestClient(api) as http:
            http.post("/orders", json={"id": 7})
        assert fake.published[0].message.json() == {"id": 7}

With pytest, the fixture ``simulate_app`` is :func:`simulate` for tests that are not coroutines.
"""

from ._fake_client import FakeClient
from ._simulation import Attempt, Became, Ended, Input, Published, Simulated, simulate, simulate_blocking

__all__ = [
    "Attempt",
    "Became",
    "Ended",
    "FakeClient",
    "Input",
    "Published",
    "Simulated",
    "simulate",
    "simulate_blocking",
]
