"""Endpoints and a handler tested without a broker: ``pytest fastapi_testing.py``."""

from collections.abc import Iterator

import pytest
import retryrmq
from fastapi.testclient import TestClient
from fastapi_lifespan import QUEUE, api, rmq
from retryrmq.testing import FakeClient

EMAIL = {"to": "maria@example.org", "text": "hello"}


@pytest.fixture
def fake() -> Iterator[FakeClient]:
    fake = FakeClient()
    with fake.replace(rmq):  # it connects to nothing else
        yield fake


def test_an_accepted_email_is_published(fake: FakeClient) -> None:
    with TestClient(api) as http:
        assert http.post("/emails", json=EMAIL).status_code == 202
    (published,) = fake.published
    assert (published.message.routing_key, published.message.json()) == (QUEUE, EMAIL)
    assert published.message.properties["content_type"] == "application/json"


def test_what_is_no_email_is_refused_and_not_published(fake: FakeClient) -> None:
    with TestClient(api) as http:
        assert http.post("/emails", json={"to": "maria@example.org"}).status_code == 422
    assert fake.published == []


def test_without_a_broker_the_client_shall_try_again(fake: FakeClient) -> None:
    with TestClient(api) as http:
        fake.publish_error = retryrmq.UnreachableError("no broker at 10.0.0.7")
        answer = http.post("/emails", json=EMAIL)
        assert (answer.status_code, answer.json()) == (503, {"detail": "try again later"})
        assert http.get("/health").status_code == 503


def test_an_email_is_sent_at_the_second_attempt(fake: FakeClient) -> None:
    with TestClient(api) as http:
        http.post("/emails", json=EMAIL)
        body = fake.published[0].message.body
        assert http.portal is not None
        result = http.portal.call(fake.deliver, QUEUE, body)  # on the event loop of the application
        assert [attempt.became for attempt in result.attempts] == ["retried", "acked"]
        assert http.portal.call(fake.deliver, QUEUE, b"no email").parked[0].reason == "fatal"
