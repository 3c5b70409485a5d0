"""Log records as JSON, with the attributes that the library gives them."""

import json
import logging
import sys

import retryrmq

QUEUE = "example.logs"

# ANCHOR: formatter
FIELDS = ("queue", "message_id", "attempt", "next_step", "error_type", "error")


class Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"level": record.levelname, "logger": record.name, "message": record.getMessage()}
        line |= {name: vars(record)[name] for name in FIELDS if name in vars(record)}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


# ANCHOR_END: formatter

output = logging.StreamHandler(sys.stdout)
output.setFormatter(Json())
logging.basicConfig(level=logging.INFO, handlers=[output])
logging.getLogger("retryrmq.handler").setLevel(logging.DEBUG)  # the traces


def handle(msg: retryrmq.Message) -> None:
    if msg.attempt == 1:
        raise ConnectionError("no answer")
    consumer.close()


with retryrmq.connect_blocking() as client:
    consumer = client.consume(QUEUE, handle, dlx=True, retry="fixed(100ms, retries=5)")
    consumer.start()
    client.publish(QUEUE, "7", message_id="order-7")
    consumer.run()
