"""Publishes with delays, with pika alone: publisher.py EXCHANGE plugin|serve [DELAY_MS…]"""

import os
import sys

import pika

exchange, by, delays = sys.argv[1], sys.argv[2], sys.argv[3:]
connection = pika.BlockingConnection(pika.URLParameters(os.environ["RETRYRMQ_URL"]))
channel = connection.channel()
if by == "plugin":
    channel.exchange_declare(exchange, "x-delayed-message", durable=True, arguments={"x-delayed-type": "topic"})
else:
    channel.exchange_declare(exchange, "topic", durable=True)
channel.confirm_delivery()
for delay in delays:
    properties = pika.BasicProperties(message_id=f"python-{delay}", delivery_mode=2, headers={"x-delay": int(delay)})
    channel.basic_publish(exchange, f"order.{delay}", delay.encode(), properties)
connection.close()
