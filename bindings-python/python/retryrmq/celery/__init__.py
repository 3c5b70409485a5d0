"""Retries and parking for Celery on RabbitMQ: ``pip install 'retryrmq[celery]'``.

::

    from celery import Celery
    from retryrmq.celery import setup

    app = Celery("shop", broker="amqp://guest:guest@localhost//")
    setup(app)

Retries and tasks with ``countdown`` or ``eta`` wait in queues of the broker, and not in the memory of a worker. A task that finally fails is
parked in ``<queue>.parked``, with its traceback. Tasks, canvas, results and signals stay as they are.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("celery") is None:
    raise ImportError("retryrmq.celery needs Celery: pip install 'retryrmq[celery]'")

from ._setup import Options, setup
from ._worker import Consumer, Request

__all__ = ["Consumer", "Options", "Request", "setup"]
