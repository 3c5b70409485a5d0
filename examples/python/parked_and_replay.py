"""A bug parks messages. An operator browses them, the bug is fixed, and they are replayed."""

import asyncio
from collections.abc import Sequence

import retryrmq

QUEUE = "example.replay"


def price(order: dict[str, float], fixed: bool) -> float:
    if "discount" not in order and not fixed:
        raise KeyError("discount")
    return order["price"] - order.get("discount", 0)


async def consume(client: retryrmq.Client, fixed: bool, count: int, orders: Sequence[tuple[str, str]] = ()) -> None:
    """Handles until ``count`` orders have been parked or are done."""
    ends = asyncio.Semaphore(0)

    async def handle(msg: retryrmq.Message) -> None:
        print(f"{msg.message_id} costs {price(msg.json(), fixed)}")
        ends.release()

    def tell(event: retryrmq.Event) -> None:
        if isinstance(event, retryrmq.Parked):
            ends.release()

    async with client.consume(QUEUE, handle, dlx=True, retry="list(200ms)", on_event=tell):
        for name, body in orders:
            await client.publish(QUEUE, body, message_id=name)
        for _ in range(count):
            await ends.acquire()


async def main() -> None:
    orders = [("order-1", '{"price": 10, "discount": 1}'), ("order-2", '{"price": 20}'), ("order-3", '{"price": 0.5}')]
    async with retryrmq.connect() as client:
        await consume(client, fixed=False, count=len(orders), orders=orders)

        async with client.parked(QUEUE) as parked:
            async for it in parked:
                print(
                    f"parked {it.message.message_id}: {it.error_type} after attempt {it.attempts}, {it.message.text()}"
                )
                print(f"  in {(it.stack or '').strip().splitlines()[-2].strip()}")
                if it.message.json()["price"] < 1:
                    await parked.drop(it)  # not worth it
                else:
                    await parked.replay(it)  # back to the tail of its queue, counted from the start

        await consume(client, fixed=True, count=1)


asyncio.run(main())
