"""A handler that gets several messages at once, and answers for each."""

import sqlite3
import threading

import retryrmq

QUEUE = "example.batches"
COUNT = 10
database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("CREATE TABLE orders (id INTEGER)")
all_ended = threading.Semaphore(0)


# ANCHOR: handler
def handle(messages: list[retryrmq.Message]) -> list[Exception | None]:
    orders: list[int] = []
    answers: list[Exception | None] = []
    for msg in messages:
        try:
            orders.append(int(msg.text()))
            answers.append(None)
        except ValueError as error:
            answers.append(error)  # this message alone is retried, or parked
    with database:  # an error here fails all of them
        database.executemany("INSERT INTO orders VALUES (?)", [(order,) for order in orders])
    return answers
    # ANCHOR_END: handler


def handle_and_count(messages: list[retryrmq.Message]) -> list[Exception | None]:
    answers = handle(messages)
    print(f"a batch of {len(messages)}", flush=True)
    for _ in messages:
        all_ended.release()
    return answers


with (
    retryrmq.connect_blocking() as client,
    client.consume(QUEUE, handle_and_count, dlx=True, fatal=ValueError, batch=5, batch_wait="1s"),
):
    for number in range(COUNT):
        client.publish(QUEUE, "no number" if number == 3 else str(number))
    for _ in range(COUNT):
        all_ended.acquire()
with retryrmq.connect_blocking() as client, client.parked(QUEUE) as parked:
    for it in parked:
        print(f"parked: {it.message.text()}, {it.reason}")
        parked.drop(it)
print(f"{database.execute('SELECT count(*) FROM orders').fetchone()[0]} orders are stored")
