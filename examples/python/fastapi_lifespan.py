"""A web service that publishes and consumes: ``uvicorn fastapi_lifespan:api``.

Consuming starts last. When the service is stopped, handlers finish and everything is settled before what they use is closed.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator

import retryrmq
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

QUEUE = "example.emails"
logger = logging.getLogger(__name__)
rmq = retryrmq.App()


class Email(BaseModel):
    to: str
    text: str


@rmq.consume(QUEUE, dlx=True, retry="exponential(500ms, max=1m, retries=8)", fatal=(ValueError,))
async def send(msg: retryrmq.Message) -> None:
    email = Email.model_validate_json(msg.body)  # a ValueError if it is not an email
    if msg.attempt == 1:
        raise ConnectionError("the mail server is restarting")
    print(f"sending to {email.to}, attempt {msg.attempt}", flush=True)
    await asyncio.sleep(0.5)
    with api.state.sent:  # a transaction
        api.state.sent.execute("INSERT INTO sent VALUES (?)", (email.to,))
    print(f"sent to {email.to}, attempt {msg.attempt}", flush=True)


@contextlib.asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    with contextlib.closing(sqlite3.connect(":memory:")) as api.state.sent:
        api.state.sent.execute("CREATE TABLE sent (receiver TEXT)")
        # Innermost: it consumes when everything that handlers use is open, and drains before that is closed.
        async with rmq:
            yield
    print("the database is closed", flush=True)


api = FastAPI(lifespan=lifespan)


@api.exception_handler(retryrmq.UnreachableError)
@api.exception_handler(retryrmq.ConnectionLostError)
@api.exception_handler(retryrmq.BrokerTimeoutError)
@api.exception_handler(retryrmq.NotConfirmedError)
@api.exception_handler(retryrmq.ClosedError)
async def unavailable(_: Request, error: Exception) -> Response:
    """The message may not be stored, so the client should try again. The reason is only logged: it may name hosts and queues."""
    logger.error("not published: %s", error)
    return JSONResponse({"detail": "try again later"}, status_code=503)


@api.post("/emails", status_code=202)
async def accept(email: Email) -> dict[str, str]:
    """Answers when the broker has confirmed: from then on the broker is responsible for the message."""
    await rmq.publish(QUEUE, email.model_dump_json(), content_type="application/json", timeout="10s")
    return {"accepted": email.to}


@api.get("/metrics")
async def metrics() -> Response:
    return Response(rmq.metrics_text(), media_type="application/openmetrics-text; version=1.0.0; charset=utf-8")


@api.get("/health")
async def health() -> Response:
    """Whether it is ready. For liveness ask something else."""
    if trouble := rmq.trouble():
        logger.warning("not ready: %s", trouble)
        return Response("not ready", status_code=503)
    return Response("fine")
