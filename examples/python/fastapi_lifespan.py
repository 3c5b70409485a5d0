"""A web service that publishes and consumes: ``uvicorn fastapi_lifespan:api``.

The consumers live as long as the service. When it is stopped, handlers finish and everything is settled.
"""

import contextlib
from collections.abc import AsyncIterator

import retryrmq
from fastapi import FastAPI, Response
from pydantic import BaseModel

QUEUE = "example.emails"
rmq = retryrmq.App()


class Email(BaseModel):
    to: str
    text: str


@rmq.consume(QUEUE, dlx=True, retry="exponential(500ms, max=1m, retries=8)", fatal=(ValueError,))
async def send(msg: retryrmq.Message) -> None:
    email = Email.model_validate_json(msg.body)  # a ValueError if it is not an email
    if msg.attempt == 1:
        raise ConnectionError("the mail server is restarting")
    print(f"sent to {email.to}, attempt {msg.attempt}", flush=True)


@contextlib.asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    async with rmq:
        yield


api = FastAPI(lifespan=lifespan)


@api.post("/emails", status_code=202)
async def accept(email: Email) -> dict[str, str]:
    """Answers when the broker has confirmed: from then on the broker is responsible for the message."""
    await rmq.publish(QUEUE, email.model_dump_json(), content_type="application/json")
    return {"accepted": email.to}


@api.get("/metrics")
async def metrics() -> Response:
    return Response(rmq.metrics_text(), media_type="application/openmetrics-text; version=1.0.0; charset=utf-8")


@api.get("/health")
async def health() -> Response:
    """Whether it is ready: why not, if it is not. For liveness ask something else."""
    trouble = rmq.trouble()
    return Response(trouble or "fine", status_code=503 if trouble else 200)
