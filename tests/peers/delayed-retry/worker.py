"""The delayed retry of RabbitMQ 4.3's quorum queues: the queue itself holds back what is rejected, and dead-letters it after the
last retry."""

import logging

import order
import pika

DEAD = f"{order.QUEUE}.dead"


def on_message(channel, method, properties, body):
    try:
        order.handle(body)
    except Exception:
        logging.exception("failed")
        channel.basic_reject(method.delivery_tag, requeue=True)
    else:
        channel.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection(pika.URLParameters(order.URL)).channel()
channel.queue_declare(DEAD, durable=True, arguments={"x-queue-type": "quorum"})
channel.queue_declare(
    order.QUEUE,
    durable=True,
    arguments={
        "x-queue-type": "quorum",
        "x-delayed-retry-type": "failed",
        "x-delayed-retry-min": order.DELAY_MS,
        "x-delayed-retry-max": order.DELAY_MS,
        "x-delivery-limit": order.RETRIES,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": DEAD,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    },
)
channel.basic_qos(prefetch_count=order.PREFETCH)
channel.basic_consume(order.QUEUE, on_message)
channel.start_consuming()
