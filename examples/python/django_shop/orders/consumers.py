"""The handlers, which ``python manage.py consume`` runs in a process of its own."""

from typing import Any

import retryrmq
from django.db import close_old_connections

from .broker import QUEUE
from .models import Order


def database_connections(msg: retryrmq.Message, call_next: retryrmq.CallNext) -> Any:
    """Handlers run on threads that live long. As around a request, a connection that is broken or too old is closed."""
    close_old_connections()
    try:
        return call_next(msg)
    finally:
        close_old_connections()


consumers = retryrmq.App(middleware=[database_connections])  # connects when it runs


@consumers.consume(QUEUE, dlx=True, retry="exponential(500ms, max=1m, retries=8)", prefetch=2, handler_timeout="30s")
def ship(msg: retryrmq.Message) -> None:
    number = msg.json()["id"]
    if msg.attempt == 1:
        raise ConnectionError("the warehouse does not answer")
    # A message may come twice: the primary key decides.
    _, is_new = Order.objects.get_or_create(number=number, defaults={"attempt": msg.attempt})
    print(f"{number} is shipped, attempt {msg.attempt}" if is_new else f"{number} was shipped before", flush=True)
