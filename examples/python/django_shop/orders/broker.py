"""The client with which views publish, and what they answer when the broker is down."""

import logging
import threading
from collections.abc import Callable

import retryrmq
from django.http import HttpRequest, HttpResponse, JsonResponse

QUEUE = "example.django"
logger = logging.getLogger(__name__)

_client: retryrmq.BlockingClient | None = None
_connecting = threading.Lock()


def broker() -> retryrmq.BlockingClient:
    """The client of this process. It connects at the first request: by then gunicorn has forked its workers."""
    global _client
    with _connecting:
        if _client is None:
            _client = retryrmq.connect_blocking()
        return _client


#: The message may not be stored, so the client should try again.
UNAVAILABLE = (
    retryrmq.UnreachableError,
    retryrmq.ConnectionLostError,
    retryrmq.BrokerTimeoutError,
    retryrmq.NotConfirmedError,
    retryrmq.ClosedError,
)


class BrokerUnavailableMiddleware:
    """Answers 503 for every view that could not publish. The reason is only logged: it may name hosts and queues."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not isinstance(error, UNAVAILABLE):
            return None
        logger.error("not published: %s", error)
        return JsonResponse({"error": "try again later"}, status=503)
