"""The retry loop that most teams write: reject to a dead-letter exchange, wait in a queue with a time to live, come back through
the exchange; counted in ``x-death``, and put into a dead queue after the last retry."""

import logging

import order
import pika
from pika.exchange_type import ExchangeType

WAITING, DEAD = f"{order.QUEUE}.retry", f"{order.QUEUE}.dead"


def rejected(properties):
    deaths = (properties.headers or {}).get("x-death") or []
    return next((death["count"] for death in deaths if death["queue"] == order.QUEUE), 0)


def on_message(channel, method, properties, body):
    try:
        order.handle(body)
    except Exception:
        logging.exception("failed")
        if rejected(properties) < order.RETRIES:
            channel.basic_reject(method.delivery_tag, requeue=False)
            return
        publishing.basic_publish("", DEAD, body, properties, mandatory=True)  # raises if not confirmed
    channel.basic_ack(method.delivery_tag)


connection = pika.BlockingConnection(pika.URLParameters(order.URL))
channel, publishing = connection.channel(), connection.channel()
publishing.confirm_delivery()
quorum = {"x-queue-type": "quorum"}
channel.exchange_declare("events", ExchangeType.topic, durable=True)
channel.exchange_declare("work.dlx", ExchangeType.fanout, durable=True)
# No dead-letter routing key: the message keeps its own, and comes back by the way it first came.
channel.queue_declare(order.QUEUE, durable=True, arguments={**quorum, "x-dead-letter-exchange": "work.dlx"})
channel.queue_bind(order.QUEUE, "events", "order.#")
back = {"x-message-ttl": order.DELAY_MS, "x-dead-letter-exchange": "events"}
channel.queue_declare(WAITING, durable=True, arguments={**quorum, **back})
channel.queue_bind(WAITING, "work.dlx")
channel.queue_declare(DEAD, durable=True, arguments=quorum)
channel.basic_qos(prefetch_count=order.PREFETCH)
channel.basic_consume(order.QUEUE, on_message)
channel.start_consuming()
