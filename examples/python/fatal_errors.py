"""Errors that a retry cannot fix: the message is parked at once."""

import threading

import retryrmq

QUEUE = "example.fatal"
all_parked = threading.Semaphore(0)


class UnknownCustomer(Exception):
    pass


def tell(event: retryrmq.Event) -> None:
    if isinstance(event, retryrmq.Parked):
        print(f"{event.message_id} is parked after attempt {event.attempt}, {event.reason}: {event.error}")
        all_parked.release()


def handle(msg: retryrmq.Message) -> None:
    order = msg.json()  # raises ValueError if it is not JSON
    if order["customer"] == 0:
        raise UnknownCustomer("nobody has the number 0")
    if order["total"] < 0:
        raise retryrmq.Park("a negative total: ask the customer")
    raise ConnectionError("the database is restarting")  # worth another try


orders = {
    "garbage": "not json",
    "unknown": '{"customer": 0, "total": 5}',
    "negative": '{"customer": 1, "total": -5}',
    "unlucky": '{"customer": 1, "total": 5}',
}

with retryrmq.connect_blocking() as client:
    consumer = client.consume(
        QUEUE,
        handle,
        dlx=True,
        retry="fixed(500ms, retries=2)",
        fatal=(ValueError, UnknownCustomer),
        on_event=tell,
    )
    with consumer:
        for name, body in orders.items():
            client.publish(QUEUE, body, message_id=name)
        for _ in orders:
            all_parked.acquire()
    with client.parked(QUEUE) as parked:
        for it in parked:
            print(f"drop {it.message.message_id}: {it.error_type or 'no type'}, attempts: {len(it.message.history)}")
            parked.drop(it)
