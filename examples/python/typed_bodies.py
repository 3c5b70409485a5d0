"""A handler that takes the body as a pydantic model; an invalid body is parked at once, with the field that is wrong."""

import threading

import retryrmq
from pydantic import BaseModel

QUEUE = "example.typed"
all_ended = threading.Semaphore(0)


# ANCHOR: handler
class Order(BaseModel):
    id: int
    customer: str


def handle(order: Order, msg: retryrmq.Message) -> None:
    print(f"order {order.id} of {order.customer}, attempt {msg.attempt}", flush=True)
    # ANCHOR_END: handler
    all_ended.release()


def tell(event: retryrmq.Event) -> None:
    if isinstance(event, retryrmq.Parked):
        print(f"{event.message_id} is parked, {event.reason}: {event.error}", flush=True)
        all_ended.release()


orders = {
    "good": '{"id": 7, "customer": "maria"}',
    "bad": '{"id": "x"}',
    "garbage": "not json",
}

with retryrmq.connect_blocking() as client, client.consume(QUEUE, handle, dlx=True, on_event=tell):
    for name, body in orders.items():
        client.publish(QUEUE, body, message_id=name)
    for _ in orders:
        all_ended.acquire()
with retryrmq.connect_blocking() as client, client.parked(QUEUE) as parked:
    for it in parked:
        parked.drop(it)
