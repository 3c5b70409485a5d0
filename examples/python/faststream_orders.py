"""FastStream with retries on its own connection: ``faststream run faststream_orders:app``, or ``python faststream_orders.py``."""

import asyncio
import os

import retryrmq
from faststream import AckPolicy, FastStream
from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitQueue
from pydantic import BaseModel
from retryrmq.faststream import CurrentMessage, RetryMiddleware

retries = RetryMiddleware(dlx=True, retry="list(200ms, 1s)")
broker = RabbitBroker(
    os.environ.get("RETRYRMQ_URL", "amqp://localhost"),
    middlewares=[retries],  # the first one
    ack_policy=AckPolicy.MANUAL,  # the middleware acknowledges
    default_channel=Channel(prefetch_count=64),  # how many orders are handled at a time
)
app = FastStream(broker, on_startup=[retries.start])


class Order(BaseModel):
    id: int


@broker.subscriber(RabbitQueue("example.faststream", queue_type=QueueType.QUORUM, durable=True))
async def handle(order: Order, message: CurrentMessage) -> None:
    print(f"order {order.id}, attempt {message.attempt}", flush=True)
    if order.id == 13:
        raise retryrmq.Park("nobody ships order 13")
    if message.attempt < 3:
        raise ConnectionError("the till is closed")
    print(f"order {order.id} is handled", flush=True)
    app.exit()


@app.after_startup
async def publish() -> None:
    for order in (Order(id=13), Order(id=7)):
        await broker.publish(order, "example.faststream")


if __name__ == "__main__":
    asyncio.run(app.run())
