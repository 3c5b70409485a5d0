"""Calls of a function for logins, without a broker."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from conftest import eventually, soon
from retryrmq._credential_provider import CredentialProvider


class OpenRequest:
    """A request, without the core that stops waiting for its answer after a while."""

    def __init__(self) -> None:
        self.is_open = True
        self.said: list[str] = []

    def answer(self, user: str, password: str, expires_in: float | None) -> None:
        self.said.append(user)
        self.is_open = False

    def refuse(self, why: str) -> None:
        self.is_open = False


def test_threads_that_hang_are_not_without_number() -> None:
    go_on = threading.Event()
    began: list[int] = []

    def login() -> tuple[str, str]:
        began.append(len(began))
        go_on.wait(60)
        return "maria", "s3cret"

    provider: Any = CredentialProvider(login, None)
    for number in range(9):
        request = OpenRequest()
        provider.request(request)
        eventually("it is called", lambda number=number: len(began) == number + 1)
        request.is_open = False
    waiting = OpenRequest()
    provider.request(waiting)
    assert len(began) == len(provider._calls) == 9 and waiting.is_open
    go_on.set()
    eventually("those that come back make place", lambda: waiting.said == ["maria"])
    eventually("all have come back", lambda: not provider._calls)


def test_what_nobody_waits_for_is_cancelled_and_never_begun() -> None:
    seen: list[str] = []

    async def login() -> Any:
        seen.append("began")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main() -> None:
        provider: Any = CredentialProvider(login, asyncio.get_running_loop())
        first, second = OpenRequest(), OpenRequest()
        provider.request(first)
        await soon("it is called", lambda: seen == ["began"])
        provider.request(second)
        first.is_open = second.is_open = False
        provider.check()
        await soon("it is cancelled", lambda: not provider._calls)
        third = OpenRequest()
        provider.request(third)
        third.is_open = False  # before the event loop has come to it
        provider.check()
        await soon("it is over", lambda: not provider._calls)

    asyncio.run(main())
    assert seen == ["began", "cancelled"]
