"""Celery with retryrmq: late acknowledgement and quorum queues; retries wait, and failed tasks are parked, as `setup` has it."""

import sys

import order
from celery import Celery
from retryrmq.celery import setup

app = Celery(broker=order.URL)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    task_acks_late=True,
    task_default_queue=order.QUEUE,
    task_default_queue_type="quorum",
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=order.PREFETCH,
)
setup(app)


@app.task(
    name="pay",
    autoretry_for=(Exception,),
    retry_kwargs={"countdown": order.DELAY_MS / 1000, "max_retries": order.RETRIES},
)
def pay(body):
    order.handle(body)


if sys.argv[1:2] == ["send"]:
    for body in sys.argv[2:]:
        pay.delay(body)
else:
    app.worker_main(["worker", "--concurrency=1", "--loglevel=INFO"])
