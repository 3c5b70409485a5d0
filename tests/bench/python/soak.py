"""The consumer of a soak in Python: prints the number of each message that it has handled."""

import sys

import retryrmq

app = retryrmq.App()


async def handle(msg):
    work(msg)


def work(msg):
    number = int(msg.text())
    if number % 997 == 0 or (number % 3 == 0 and msg.attempt == 1):
        raise ValueError(f"{number} does not work")
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


how, queue = sys.argv[1:3]
app.consume(queue, dlx=True, retry="fixed(200ms, retries=5)")(work if how == "sync" else handle)
app.run()
