"""Consumes `orders` with pika alone, and rejects at random. Publishes for all three, too."""

import itertools
import os
import random
import signal
import sys
import threading
import time

import pika

QUEUES = ("orders", "billing", "mail")
parameters = pika.URLParameters(os.environ["RETRYRMQ_URL"])
over = threading.Event()


def attempt(properties: pika.BasicProperties) -> int:
    return (properties.headers or {}).get("x-retry-count", 0) + 1


def publish() -> None:
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    for number in itertools.count(1):
        if over.is_set():
            break
        queue = QUEUES[number % 3]
        properties = pika.BasicProperties(message_id=f"{queue}-{number}", delivery_mode=2)
        channel.basic_publish("", queue, b"{}", properties)
        connection.sleep(0.5)
    connection.close()


def main() -> None:
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: over.set())
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    for queue in QUEUES:
        channel.queue_declare(
            queue,
            durable=True,
            arguments={
                "x-queue-type": "quorum",
                "x-dead-letter-exchange": "retryrmq.dead",
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            },
        )
    channel.basic_qos(prefetch_count=10)
    if sys.argv[1:] == ["declare"]:
        connection.close()
        return
    publisher = threading.Thread(target=publish)
    publisher.start()
    while not over.is_set():
        method, properties, _ = next(channel.consume("orders", inactivity_timeout=0.2))
        if method is None:
            continue
        time.sleep(0.05)
        accepted = random.random() < 0.4
        if accepted:
            channel.basic_ack(method.delivery_tag)
        else:
            channel.basic_reject(method.delivery_tag, requeue=False)
        verdict = "done" if accepted else "rejected"
        print(f"{properties.message_id:<12} attempt {attempt(properties)}  {verdict}", flush=True)
    publisher.join()
    connection.close()


main()
