"""A Flask application that publishes from a view: ``gunicorn --workers 2 flask_orders:app``.

Its consumer is a process of its own: ``flask --app flask_orders consume``.
"""

import json
import logging
import re
import threading

import click
import retryrmq
from flask import Flask, current_app, request
from flask.typing import ResponseReturnValue
from probes import serve_probes

QUEUE = "example.flask"
ORDER_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
logger = logging.getLogger(__name__)
app = Flask(__name__)
app.config["SHOP"] = "Chairs and Co."

_client: retryrmq.BlockingClient | None = None
_connecting = threading.Lock()


def broker() -> retryrmq.BlockingClient:
    """The client of this process. It connects at the first request: by then gunicorn has forked its workers."""
    global _client
    with _connecting:
        if _client is None:
            _client = retryrmq.connect_blocking()
        return _client


@app.errorhandler(retryrmq.UnreachableError)
@app.errorhandler(retryrmq.ConnectionLostError)
@app.errorhandler(retryrmq.BrokerTimeoutError)
@app.errorhandler(retryrmq.NotConfirmedError)
@app.errorhandler(retryrmq.ClosedError)
def unavailable(error: Exception) -> ResponseReturnValue:
    """The message may not be stored, so the client should try again. The reason is only logged: it may name hosts and queues."""
    logger.error("not published: %s", error)
    return {"error": "try again later"}, 503


@app.post("/orders")
def accept() -> ResponseReturnValue:
    match request.get_json():
        case {"id": str(order)} if ORDER_ID.fullmatch(order):
            # Returns when the broker has confirmed: from then on the broker is responsible for the message.
            body = json.dumps({"id": order})
            broker().publish(QUEUE, body, message_id=order, content_type="application/json", timeout="10s")
            return {"accepted": order}, 202
    return {"error": "an order needs an id"}, 400


@app.get("/health")
def health() -> ResponseReturnValue:
    """Whether it is ready. For liveness ask something else."""
    if trouble := broker().trouble():
        logger.warning("not ready: %s", trouble)
        return "not ready", 503
    return "fine"


consumers = retryrmq.App()  # connects when it runs


@consumers.consume(QUEUE, dlx=True, retry="exponential(500ms, max=1m, retries=8)", prefetch=2, handler_timeout="30s")
def ship(msg: retryrmq.Message) -> None:
    with app.app_context():  # a handler runs on a thread of its own; extensions close what they opened at the end
        if msg.attempt == 1:
            raise ConnectionError("the warehouse does not answer")
        print(f"{current_app.config['SHOP']} ships {msg.json()['id']}, attempt {msg.attempt}", flush=True)


@app.cli.command("consume")
@click.option("--probes", default=9419, show_default=True, help="The port of /healthz, /readyz and /metrics.")
def consume(probes: int) -> None:
    """Handle orders until SIGTERM, then drain."""
    logging.basicConfig(level=logging.INFO)  # shows why attempts fail
    serve_probes(consumers, probes)
    consumers.run()
