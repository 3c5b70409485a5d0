"""OAuth 2 tokens and a client certificate at a real broker: `tests/logins python token_login.py`."""

from __future__ import annotations

import asyncio
import os
import subprocess

import retryrmq

#: How long a token is good for, in seconds: so long that a busy machine renews it in time.
LIFETIME = 40
QUEUE = "orders"


async def main() -> None:
    asked = 0

    def token() -> retryrmq.Login:
        nonlocal asked
        asked += 1
        mint = [os.environ["RETRYRMQ_LOGINS_TOKEN"], str(LIFETIME)]
        return retryrmq.Login("token", subprocess.run(mint, check=True, capture_output=True, text=True).stdout)

    async with await retryrmq.connect(os.environ["RETRYRMQ_LOGINS_AMQP"], credentials=token) as client:
        # For longer than two tokens live.
        await handles(client, 2 * LIFETIME + 4)
        assert client.reconnects == 0, f"the connections stay open: {client.reconnects}"
        assert asked > 2, asked
        assert client.healthy()
    async with await retryrmq.connect(os.environ["RETRYRMQ_LOGINS_CERTIFICATE"]) as client:
        await handles(client, 1)


async def handles(client: retryrmq.Client, seconds: int) -> None:
    """A message a second is published and handled."""
    handled: asyncio.Queue[str] = asyncio.Queue()

    async def handle(msg: retryrmq.Message) -> None:
        handled.put_nowait(msg.text())

    async with client.consume(QUEUE, handle, dlx=True):
        for number in range(seconds):
            await client.publish(QUEUE, str(number))
            assert await asyncio.wait_for(handled.get(), 60) == str(number)
            await asyncio.sleep(1)


asyncio.run(main())
