"""Celery as it comes: tasks are acknowledged before they run, queues are classic, and a retry waits in the worker."""

import sys

import order
from celery import Celery

app = Celery(broker=order.URL)
app.conf.update(task_default_queue=order.QUEUE, broker_connection_retry_on_startup=True)


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
