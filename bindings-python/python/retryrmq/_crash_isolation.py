"""Who may run when a message has crashed its consumer: such a message runs alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

#: How long a suspect waits for other messages, and they for it, in seconds. Anybody can forge one.
_TIMEOUT = 5.0


class CrashIsolation:
    """The attempts of one consumer. All of it happens on one event loop."""

    def __init__(self) -> None:
        self._running = 0
        #: Whether a suspect runs, or waits for those that run.
        self._alone = False
        #: How many messages are being settled without having run.
        self._detours = 0
        self._changed = asyncio.Event()

    async def begin(self, crashed: bool) -> bool:
        """Waits until a message may run. One that has crashed waits for all detours, because another crash would double them; ``False`` if a
        suspect runs: it would be blamed for that one's crash."""
        if crashed:
            # A suspect may begin meanwhile, and so may a detour.
            while self._detours and not self._alone:
                await self._until(lambda: self._alone or not self._detours, None)
            if self._alone:
                return False
        else:
            await self._until(lambda: not self._alone, _TIMEOUT)
        self._running += 1
        return True

    async def begin_alone(self, sync: Callable[[], Awaitable[object]]) -> bool:
        """Waits until a suspect may run; ``False`` if another one does. ``sync`` asks the broker something on the consuming channel."""
        if self._alone:
            return False
        self._alone = True
        try:
            # What was on its way has arrived after the first answer, and has been looked at after the second.
            await sync()
            await sync()
            await self._until(lambda: not self._running and not self._detours, _TIMEOUT)
            await sync()  # the broker has read what was settled
        except BaseException:
            self._alone = False
            self._notify()
            raise
        self._running += 1
        return True

    def end(self, *, alone: bool) -> None:
        """An attempt has ended. ``alone`` is whether it was a suspect's."""
        self._running -= 1
        self._alone = self._alone and not alone
        self._notify()

    @contextlib.contextmanager
    def detour(self) -> Iterator[None]:
        """While a message that did not run is settled."""
        self._detours += 1
        try:
            yield
        finally:
            self._detours -= 1
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, condition: Callable[[], bool], timeout: float | None) -> None:
        """Waits until the condition holds, or for this many seconds."""

        async def holds() -> None:
            while not condition():
                await self._changed.wait()

        if not condition():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(holds(), timeout)
