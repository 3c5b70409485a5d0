"""The function that gives the credentials: where it is called, and what happens to calls that never end."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from . import _log_queue
from ._attempts import is_ctrl_c
from ._duration import seconds
from ._greenlets import is_forwarded_ctrl_c
from ._native import CredentialRequest
from ._signatures import is_async
from .credentials import Credentials, checked_login
from .errors import ClosedError, RetryRmqError
from .outcome import described, trace_of

#: How many abandoned calls may hang before no more are started.
_MAX_STUCK = 8
#: How many characters of its error are shown.
_MAX_ERROR = 500


class _ProviderCall:
    """One call of the function, until it has ended."""

    def __init__(self, request: CredentialRequest) -> None:
        self.request = request
        #: The task that awaits its result, if that is awaitable.
        self.task: asyncio.Task[Any] | None = None

    def cancel(self) -> None:
        """Cancels the task; nobody waits for the call any more. A thread cannot be stopped."""
        task, self.task = self.task, None
        if task is not None:
            with contextlib.suppress(RuntimeError):  # its event loop is closed, and it has ended
                task.get_loop().call_soon_threadsafe(task.cancel)


class CredentialProvider:
    """Calls a function for the login, one call after the other, because user code is often not thread-safe.

    An ``async def`` runs on the event loop that connects, any other function on a thread: the event loop must not wait for it, nor it for
    the thread that connects. Without an event loop, an ``async def`` gets one of its own, on that thread.

    The core stops waiting for an answer after a while. Such a call is cancelled if possible, and holds up no later request.
    """

    def __init__(self, function: Credentials, loop: asyncio.AbstractEventLoop | None) -> None:
        self._function = function
        self._loop = loop
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._waiting: deque[CredentialRequest] = deque()
        self._calls: set[_ProviderCall] = set()

    def request(self, request: CredentialRequest) -> None:
        """Calls the function for this request, at once or when it is its turn."""
        with self._lock:
            self._waiting.append(request)
        self.check()

    def check(self) -> None:
        """Abandons calls and requests that nobody waits for, and starts the next one."""
        if not (self._waiting or self._calls):
            return
        with self._lock:
            for call in self._calls:
                if not call.request.is_open:
                    call.cancel()
            self._waiting = deque(request for request in self._waiting if request.is_open)
            busy = any(call.request.is_open for call in self._calls) or len(self._calls) > _MAX_STUCK
            if busy or not self._waiting:
                return
            call = _ProviderCall(self._waiting.popleft())
            self._calls.add(call)
        self._begin(call)

    def end(self) -> None:
        """Refuses all open requests: the client was closed."""
        with self._lock:
            for request in [*self._waiting, *(call.request for call in self._calls)]:
                request.refuse("the client was closed")
        self.check()

    def _begin(self, call: _ProviderCall) -> None:
        context = self._context.copy()
        try:
            if self._loop is not None and is_async(self._function):
                _call_soon(self._loop, context, self._run, call)
            else:
                # A daemon: a function that never returns must not keep the process alive.
                threading.Thread(
                    target=context.run, args=(self._run, call), name="retryrmq-credentials", daemon=True
                ).start()
        except Exception as error:  # the loop is closed, or the machine has no more threads
            self._fail(call, error)
            self._call_ended(call)

    def _run(self, call: _ProviderCall) -> None:
        """On a thread of its own, or on the event loop."""
        if not call.request.is_open:  # the client was closed while this began
            self._call_ended(call)
            return
        try:
            result = self._function()
            if not inspect.isawaitable(result):
                _reply(call, result)
            elif self._loop is None:
                asyncio.run(self._await(call, result))
            else:
                self._await_on_loop(call, result, self._loop)
                return
        except BaseException as error:
            self._fail(call, error)
            self._call_ended(call)
            if is_ctrl_c(error) and not is_forwarded_ctrl_c(error):
                raise
        else:
            self._call_ended(call)

    def _await_on_loop(self, call: _ProviderCall, result: Awaitable[Any], loop: asyncio.AbstractEventLoop) -> None:
        def begin() -> None:
            loop.create_task(self._await(call, result)).add_done_callback(lambda _: self._call_ended(call))

        try:
            _call_soon(loop, contextvars.copy_context(), begin)
        except ClosedError:
            _close_unawaited(result)
            raise

    async def _await(self, call: _ProviderCall, result: Awaitable[Any]) -> None:
        if not call.request.is_open:
            _close_unawaited(result)
            return
        call.task = asyncio.current_task()
        try:
            _reply(call, await result)
        except BaseException as error:
            self._fail(call, error)
            if is_ctrl_c(error):
                raise

    def _fail(self, call: _ProviderCall, error: BaseException) -> None:
        """Refuses the request. Never raises: the request would stay open."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            why = "it was cancelled"
        elif isinstance(error, RetryRmqError):
            why = described(error).removeprefix(f"{type(error).__name__}: ")
        else:
            why = described(error)
        call.request.refuse(why[:_MAX_ERROR])
        trace = (type(error), error, trace_of(error))
        # Not on this thread: it may be the one that fetches notifications, which must not wait for log handlers.
        _log_queue.write(
            "retryrmq.credentials",
            logging.DEBUG,
            "the function that gives the credentials failed: %s",
            why,
            exc_info=trace,
        )

    def _call_ended(self, call: _ProviderCall) -> None:
        with self._lock:
            self._calls.discard(call)
        self.check()


def _reply(call: _ProviderCall, result: Any) -> None:
    login = checked_login(result)
    lifetime = None if login.expires_in is None else seconds(login.expires_in, "expires_in")
    call.request.answer(login.user, login.password, lifetime)


def _call_soon(
    loop: asyncio.AbstractEventLoop, context: contextvars.Context, function: Callable[..., None], *args: object
) -> None:
    try:
        loop.call_soon_threadsafe(function, *args, context=context)
    except RuntimeError:
        raise ClosedError("its event loop is closed") from None


def _close_unawaited(result: Awaitable[Any]) -> None:
    """Closes a coroutine, without the warning that it was never awaited."""
    if inspect.iscoroutine(result):
        result.close()
