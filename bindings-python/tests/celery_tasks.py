"""The tasks of test_celery.py; `celery -A celery_tasks worker` runs them. What they do is written into the folder CELERY_LOG."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from celery import Celery
from celery.exceptions import Ignore, Reject
from celery.signals import task_failure
from celery.worker.request import Request
from kombu import Exchange, Queue
from kombu.common import Broadcast
from retryrmq.celery import _copy_workers, setup

QUEUE = "work"
LOG = os.environ["CELERY_LOG"]
settings: dict[str, Any] = json.loads(os.environ.get("CELERY_SETTINGS", "{}"))
exchange = Exchange(QUEUE, type=settings.pop("exchange_type", "direct"))
arguments = {"x-queue-type": "quorum"} if settings.pop("queue_type", "quorum") == "quorum" else None
key = "order.#" if exchange.type == "topic" else QUEUE

app = Celery("tests", broker=os.environ["CELERY_BROKER"], backend=f"file://{LOG}/results")
os.makedirs(f"{LOG}/results", exist_ok=True)
options = settings.pop("setup", {})
is_set_up = settings.pop("is_set_up", True)
if most_copies := settings.pop("most_copies", None):
    _copy_workers._MOST_COPIES = most_copies
is_configured_again = settings.pop("configured_again", False)
if is_configured_again:
    app.conf.task_default_queue = QUEUE  # reads it for the first time
    setup(app, **options)
configuration = {
    "broker_connection_retry_on_startup": True,
    "task_default_queue": QUEUE,
    "task_default_exchange": exchange.name,
    "task_default_routing_key": "order.paid" if exchange.type == "topic" else QUEUE,
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "task_queues": [Queue(QUEUE, exchange, routing_key=key, queue_arguments=arguments)],
    "worker_prefetch_multiplier": 4,
    **settings,
}
if settings.pop("has_broadcast", False):
    configuration["task_queues"] += [Broadcast("news"), Queue("own", exclusive=True, auto_delete=True, durable=False)]
    configuration.pop("has_broadcast")
if is_configured_again:
    app.config_from_object(configuration)
else:
    app.conf.update(configuration)
if is_set_up and not is_configured_again:
    setup(app, **options)


def ran(task: Any, note: Any = None) -> None:
    line = {"task": task.name, "id": task.request.id, "retries": task.request.retries, "eta": task.request.eta}
    line |= {"at": time.time(), "note": note}
    with open(f"{LOG}/runs", "ab") as runs:
        runs.write(json.dumps(line).encode() + b"\n")


@task_failure.connect
def note_failure(sender: Any, exception: Exception, **_: Any) -> None:
    with open(f"{LOG}/failures", "a") as failures:
        failures.write(f"{sender.name} {type(exception).__name__}\n")


@app.task(bind=True, name="ok")
def ok(self: Any, note: Any = None) -> Any:
    ran(self, note)
    return note


@app.task(bind=True, name="fails", autoretry_for=(ValueError,), retry_kwargs={"max_retries": 5})
def fails(self: Any, times: int, countdown: float = 0.5, retries: int = 5) -> str:
    ran(self, times)
    self.autoretry_for = ()
    if self.request.retries < times:
        try:
            raise ValueError(f"not yet, {times} times")
        except ValueError as error:
            raise self.retry(exc=error, countdown=countdown, max_retries=retries) from None
    return "done"


@app.task(bind=True, name="auto", autoretry_for=(ValueError,), retry_kwargs={"countdown": 0.2, "max_retries": 2})
def auto(self: Any) -> None:
    ran(self)
    raise ValueError("always")


class Watched(Request):
    """A request of the application's own."""

    def on_failure(self, *args: Any, **options: Any) -> Any:
        with open(f"{LOG}/watched", "a") as watched:
            watched.write(f"{self.name}\n")
        return super().on_failure(*args, **options)


@app.task(bind=True, name="fatal", Request=Watched)
def fatal(self: Any, order: int) -> None:
    ran(self)
    raise KeyError(f"order {order}")


@app.task(bind=True, name="rejects")
def rejects(self: Any) -> None:
    raise Reject("not mine", requeue=False)


@app.task(bind=True, name="ignores")
def ignores(self: Any) -> None:
    ran(self)
    raise Ignore


@app.task(bind=True, name="slow", time_limit=1)
def slow(self: Any) -> None:
    ran(self)
    time.sleep(120)


@app.task(bind=True, name="soft", soft_time_limit=1)
def soft(self: Any) -> None:
    ran(self)
    time.sleep(120)


@app.task(bind=True, name="takes")
def takes(self: Any, seconds: float, note: Any = None) -> None:
    ran(self, note)
    time.sleep(seconds)


@app.task(bind=True, name="dies")
def dies(self: Any) -> None:
    ran(self)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, name="total")
def total(self: Any, numbers: list[int]) -> int:
    ran(self)
    return sum(numbers)


@app.task(bind=True, name="number")
def number(self: Any, value: int, fails: int = 0) -> int:
    ran(self, value)
    if self.request.retries < fails:
        raise self.retry(exc=ValueError("not yet"), countdown=0.2)
    return value


@app.task(bind=True, name="requeues")
def requeues(self: Any, times: int) -> None:
    ran(self)
    with open(f"{LOG}/runs", "rb") as runs:
        if sum(b'"requeues"' in line for line in runs) < times:
            raise Reject("later", requeue=True)
