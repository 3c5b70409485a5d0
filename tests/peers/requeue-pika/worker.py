"""A requeue loop: what most tutorials show. A failed message is given back at once."""

import logging

import order
import pika


def on_message(channel, method, properties, body):
    try:
        order.handle(body)
    except Exception:
        logging.exception("failed")
        channel.basic_nack(method.delivery_tag, requeue=True)
    else:
        channel.basic_ack(method.delivery_tag)


channel = pika.BlockingConnection(pika.URLParameters(order.URL)).channel()
channel.queue_declare(order.QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
channel.basic_qos(prefetch_count=order.PREFETCH)
channel.basic_consume(order.QUEUE, on_message)
channel.start_consuming()
