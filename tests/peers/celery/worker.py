"""Celery in its most durable setting: late acknowledgement, quorum queues with its native delayed delivery, publisher confirms, and
a dead-letter route for tasks that fail for good."""

import sys

import order
from celery import Celery
from kombu import Exchange, Queue

DEAD = f"{order.QUEUE}.dead"
quorum = {"x-queue-type": "quorum"}
dead_letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}

app = Celery(broker=order.URL)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    task_acks_late=True,
    task_acks_on_failure_or_timeout=False,
    task_default_queue=order.QUEUE,
    task_queues=[
        Queue(
            order.QUEUE,
            Exchange(order.QUEUE, type="topic"),
            routing_key=order.QUEUE,
            queue_arguments={**quorum, **dead_letters},
        )
    ],
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=order.PREFETCH,
)


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
    with app.connection_for_write() as connection:
        Queue(DEAD, routing_key=DEAD, queue_arguments=quorum)(connection.default_channel).queue_declare()
    app.worker_main(["worker", "--concurrency=1", "--loglevel=INFO"])
