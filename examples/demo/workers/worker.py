"""One of the demo's workers: an order fails at its first attempt, and wherever it failed last."""

import asyncio
import signal
import sys

import retryrmq

app = retryrmq.App()


class NotHere(Exception):
    pass


@app.consume(sys.argv[1], dlx=True, retry="fixed(500ms, retries=20)", prefetch=1, concurrency=1)
async def handle(msg: retryrmq.Message) -> None:
    handled = msg.attempt > 1 and not (msg.last_error or "").startswith("python:")
    print(msg.message_id, msg.attempt, "handled" if handled else "failed", flush=True)
    if not handled:
        raise NotHere("python: not here")


async def main() -> None:
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    async with app:
        print("ready", flush=True)
        await end.wait()


asyncio.run(main())
