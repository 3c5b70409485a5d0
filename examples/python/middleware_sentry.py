"""Failed attempts in Sentry, from a middleware: with the message, and without those that the handler asked to repeat."""

from typing import Any

import retryrmq
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

QUEUE = "example.sentry"


class Printed(Transport):
    """Prints what Sentry would get. Without it, `SENTRY_DSN` says where events go."""

    def capture_envelope(self, envelope: Envelope) -> None:
        event: Any = envelope.get_event()
        error, message = event["exception"]["values"][-1], event["contexts"]["message"]
        print(f"{error['type']}: {error['value']}, attempt {message['attempt']} of {message['id']}", flush=True)


sentry_sdk.init(dsn="https://key@sentry.example.org/1", transport=Printed)


# ANCHOR: middleware
def reported(msg: retryrmq.Message, call_next: retryrmq.CallNext) -> Any:
    with sentry_sdk.isolation_scope() as scope:
        scope.set_context("message", {"id": msg.message_id, "queue": msg.queue, "attempt": msg.attempt})
        try:
            return call_next(msg)
        except (retryrmq.RetryAfter, retryrmq.Defer):
            raise  # the handler expects these
        except Exception as error:
            sentry_sdk.capture_exception(error)
            raise  # otherwise the message would be acknowledged
            # ANCHOR_END: middleware


def handle(msg: retryrmq.Message) -> None:
    if msg.attempt == 1:
        raise retryrmq.RetryAfter("100ms", "the partner asks for a break")
    if msg.attempt == 2:
        raise ConnectionError("no answer")
    consumer.close()


with retryrmq.connect_blocking(middleware=[reported]) as client:
    consumer = client.consume(QUEUE, handle, dlx=True, retry="fixed(100ms, retries=5)")
    consumer.start()
    client.publish(QUEUE, "7", message_id="order-7")
    consumer.run()
