"""A database transaction around every attempt, from a middleware: committed if the handler returns, rolled back if it raises."""

import contextlib
import sqlite3
import tempfile
from contextvars import ContextVar
from typing import Any

import retryrmq

QUEUE = "example.transactions"
FILE = f"{tempfile.mkdtemp()}/orders.sqlite"
with sqlite3.connect(FILE) as setup:
    setup.execute("CREATE TABLE orders (id INTEGER, attempt INTEGER)")

# ANCHOR: middleware
session: ContextVar[sqlite3.Connection] = ContextVar("session")


def in_a_transaction(msg: retryrmq.Message, call_next: retryrmq.CallNext) -> Any:
    with contextlib.closing(sqlite3.connect(FILE)) as database, database:
        session.set(database)  # each attempt has its own context
        return call_next(msg)


# ANCHOR_END: middleware


def handle(msg: retryrmq.Message) -> None:
    session.get().execute("INSERT INTO orders VALUES (?, ?)", (int(msg.text()), msg.attempt))
    if msg.attempt == 1:
        raise ConnectionError("after the insert")

    consumer.close()


with retryrmq.connect_blocking(middleware=[in_a_transaction]) as client:
    consumer = client.consume(QUEUE, handle, dlx=True, retry="fixed(100ms, retries=5)")
    consumer.start()
    client.publish(QUEUE, "7")
    consumer.run()

with sqlite3.connect(FILE) as database:
    print(f"the orders are {database.execute('SELECT * FROM orders').fetchall()}")
