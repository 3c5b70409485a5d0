"""Handles one message of a queue, which fails once and comes back: consumer.py QUEUE"""

import sys

import retryrmq

app = retryrmq.App()


@app.consume(sys.argv[1], dlx=True, retry="fixed(100ms, retries=3)")
def handle(msg):
    print(f"attempt {msg.attempt} of {msg.text()}", flush=True)
    if msg.attempt == 1:
        raise ConnectionError("the database is restarting")
    app.stop()


app.run()
