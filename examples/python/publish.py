"""Publishes: ``python publish.py QUEUE BODY…``. Returns when the broker has confirmed."""

import sys

import retryrmq

queue, *bodies = sys.argv[1:]
with retryrmq.connect_blocking() as client:
    for body in bodies:
        client.publish(queue, body)
