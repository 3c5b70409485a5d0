"""A request id that goes from the publisher through the message into every line that the handler logs."""

import asyncio
import logging
import sys
from contextvars import ContextVar
from typing import Any

import retryrmq

QUEUE = "example.requests"

# ANCHOR: middleware
request_id: ContextVar[str] = ContextVar("request_id", default="-")


async def send_request_id(publish: retryrmq.Publishing, call_next: retryrmq.PublishNext) -> None:
    publish.headers.setdefault("x-request-id", request_id.get())
    await call_next(publish)


async def take_request_id(msg: retryrmq.Message, call_next: retryrmq.CallNext) -> Any:
    request_id.set(str(msg.headers.get("x-request-id", "-")))  # each attempt has its own context
    return await call_next(msg)


app = retryrmq.App(middleware=[take_request_id], publish_middleware=[send_request_id])
# ANCHOR_END: middleware


class WithRequestId(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id.get()
        return True


output = logging.StreamHandler(sys.stdout)
output.addFilter(WithRequestId())
logging.basicConfig(level=logging.INFO, format="[%(request_id)s] %(name)s: %(message)s", handlers=[output])
logger = logging.getLogger("orders")


@app.consume(QUEUE, dlx=True)
async def handle(msg: retryrmq.Message) -> None:
    logger.info("handling order %s", msg.text())
    app.stop()


async def main() -> None:
    async with app:
        request_id.set("r-42")  # as a web framework does for each request
        await app.publish(QUEUE, "7")
        await app.wait_closed()


asyncio.run(main())
