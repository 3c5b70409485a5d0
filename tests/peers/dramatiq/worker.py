"""Dramatiq with publisher confirms. Late acknowledgement and dead-letter queues it has by itself."""

import os
import sys
import threading

os.environ["dramatiq_queue_prefetch"] = "5"  # noqa: SIM112 - its name

import dramatiq
import order
from dramatiq.brokers.rabbitmq import RabbitmqBroker

broker = RabbitmqBroker(url=order.URL, confirm_delivery=True)
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=order.QUEUE, max_retries=order.RETRIES)
def pay(body):
    try:
        order.handle(body)
    except Exception as error:
        # Its own backoff has jitter, and "on time" could not be told from "early".
        raise dramatiq.errors.Retry(str(error), delay=order.DELAY_MS) from error


if sys.argv[1:2] == ["send"]:
    for body in sys.argv[2:]:
        pay.send(body)
else:
    dramatiq.Worker(broker, worker_threads=1).start()
    threading.Event().wait()
