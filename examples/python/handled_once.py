"""Work that is done once, even if its message comes twice: the database decides."""

import asyncio
import sqlite3

import retryrmq

QUEUE = "example.once"
app = retryrmq.App()
both_came = asyncio.Semaphore(0)
database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE handled (message_id TEXT PRIMARY KEY)")
database.execute("CREATE TABLE balance (cents INTEGER)")
database.execute("INSERT INTO balance VALUES (0)")


# ANCHOR: handler
@app.consume(QUEUE, dlx=True)
async def handle(msg: retryrmq.Message) -> None:
    try:
        with database:  # one transaction
            database.execute("INSERT INTO handled VALUES (?)", (msg.message_id,))
            database.execute("UPDATE balance SET cents = cents + ?", (msg.json()["cents"],))
    except sqlite3.IntegrityError:
        print(f"{msg.message_id} was handled before")
    else:
        print(f"{msg.message_id} is handled")
        # ANCHOR_END: handler
    both_came.release()


async def main() -> None:
    async with app:
        for _ in range(2):  # as a publisher does that did not hear of its confirm
            await app.publish(QUEUE, '{"cents": 500}', message_id="payment-7")
        for _ in range(2):
            await both_came.acquire()
    print(f"the balance is {database.execute('SELECT cents FROM balance').fetchone()[0]}")


asyncio.run(main())
