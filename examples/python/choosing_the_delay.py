"""Three ways to choose how long a failed message waits: the policy, a rule, or the handler itself."""

import asyncio

import retryrmq

app = retryrmq.App()
left = {"flaky", "timeout", "busy", "early"}
all_done = asyncio.Event()


def tell(event: retryrmq.Event) -> None:
    if isinstance(event, retryrmq.Retried):
        print(f"{event.message_id} waits {event.delay.total_seconds():g} s: {event.error}")
    elif isinstance(event, retryrmq.Deferred):
        print(f"{event.message_id} is deferred for {event.delay.total_seconds():g} s")


@app.consume(
    "example.delays",
    dlx=True,
    retry=retryrmq.exponential("250ms", factor=2, max="1m", retries=6),
    rules=[retryrmq.Rule(retryrmq.fixed("1s", retries=3), error=TimeoutError)],
    on_event=tell,
)
async def handle(msg: retryrmq.Message) -> None:
    name = msg.message_id or ""
    if name == "flaky" and msg.attempt <= 3:
        raise ConnectionError("the database is restarting")  # the policy: 0.25, 0.5 and 1 s
    if name == "timeout" and msg.attempt == 1:
        raise TimeoutError("no answer")  # the rule: 1 s
    if name == "busy" and msg.attempt == 1:
        raise retryrmq.RetryAfter("1500ms", "the partner asks for 1.5 s")
    if name == "early" and "x-retry-deferrals" not in msg.headers:
        raise retryrmq.Defer("500ms")  # not an error: uses up no retry
    print(f"{name} is done at attempt {msg.attempt}")
    left.discard(name)
    if not left:
        all_done.set()


async def main() -> None:
    async with app:
        for name in sorted(left):
            await app.publish("example.delays", b"", message_id=name)
        await all_done.wait()


asyncio.run(main())
