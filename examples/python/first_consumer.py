"""A handler that fails twice, and a message that comes back until it succeeds. Ends with Ctrl-C."""

import retryrmq

app = retryrmq.App()  # at RETRYRMQ_URL, or on this machine


@app.consume("orders", dlx=True)
def handle(msg: retryrmq.Message) -> None:
    print(f"attempt {msg.attempt} of order {msg.text()}", flush=True)
    if msg.attempt < 3:
        raise ConnectionError("the database is restarting")


app.run()
