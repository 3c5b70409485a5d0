"""Tasks that wait in the broker, and are parked if they finally fail: ``celery -A tasks worker``, and ``python tasks.py`` elsewhere."""

import os

from celery import Celery
from retryrmq.celery import setup

app = Celery("tasks", broker=os.environ.get("RETRYRMQ_URL", "amqp://localhost"))
app.conf.update(task_default_queue="example.celery", task_acks_late=True, broker_connection_retry_on_startup=True)
setup(app)


@app.task(bind=True, autoretry_for=(ConnectionError,), retry_kwargs={"countdown": 1, "max_retries": 3})
def pay(self, order):
    if self.request.retries == 0:
        raise ConnectionError("the bank does not answer")
    print(f"{order} is paid, after {self.request.retries} retry")


@app.task
def refund(order):
    raise LookupError(f"{order} was never paid")


if __name__ == "__main__":
    pay.delay("order-7")
    pay.apply_async(("order-8",), countdown=2)
    refund.delay("order-9")
