"""Middleware: functions around every attempt, and around every publish.

::

    async def measured(msg, call_next):
        began = time.monotonic()
        try:
            return await call_next(msg)
        finally:
            histogram.observe(time.monotonic() - began)


    app = retryrmq.App(middleware=[measured])

Without any, nothing is called in between.
"""

from __future__ import annotations

import asyncio
import inspect
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from . import _result_check
from ._duration import Duration
from ._native import Message
from ._signatures import checked_callable, is_async, name_of
from ._unawaited import AttemptMark, current_attempt, track_call
from .errors import InvalidTypeError

#: What a middleware calls with its message: the next middleware, or the handler. In an ``async def``, await the result.
CallNext: TypeAlias = Callable[[Message], Any]


_Function: TypeAlias = Callable[[Any, Callable[[Any], Any]], Any]


class Publishing:
    """A message that is about to be published, as publish middleware gets it: :attr:`headers` and :attr:`properties` may be changed."""

    __slots__ = ("_body", "_fixed", "_mark", "_routing_key", "headers", "properties")

    #: The headers. Changing them changes the message.
    headers: dict[str, Any]
    #: The properties that are set, by their names in :class:`PublishOptions`: ``message_id``, ``correlation_id``, ``content_type``, …
    #: Changing them changes the message.
    properties: dict[str, Any]

    def __init__(self, routing_key: str, body: bytes, fixed: Mapping[str, Any], properties: Mapping[str, Any]) -> None:
        self._routing_key = routing_key
        self._body = body
        self._fixed = fixed
        self._mark = AttemptMark()
        self.properties = dict(properties)
        self.headers = dict(self.properties.pop("headers", {}))

    @property
    def exchange(self) -> str:
        """The exchange; empty for the default exchange."""
        return self._fixed.get("exchange", "")  # type: ignore[no-any-return]

    @property
    def routing_key(self) -> str:
        """The routing key; through the default exchange, the name of the queue."""
        return self._routing_key

    @property
    def queue(self) -> str | None:
        """The queue to which the default exchange sends it; ``None`` for another exchange."""
        return None if self.exchange else self._routing_key

    @property
    def body(self) -> bytes:
        """The body."""
        return self._body

    @property
    def delay(self) -> Duration | None:
        """The delay, as it was given; ``None`` without."""
        return self._fixed.get("delay")

    def __repr__(self) -> str:
        return f"<retryrmq.Publishing exchange={self.exchange!r} routing_key={self.routing_key!r}>"


#: What a publish middleware calls with its message: the next one, or the client. It returns after the broker has confirmed the message. In an
#: ``async def``, await the result.
PublishNext: TypeAlias = Callable[[Publishing], Any]


@dataclass(frozen=True)
class DualMiddleware:
    """A middleware for ``async def`` and for ``def``, for an app that has handlers of both kinds, or a package that knows neither."""

    #: An ``async def``, for ``async def`` handlers and for ``await client.publish(…)``.
    asynchronous: _Function
    #: A ``def``, for ``def`` handlers and for ``client.blocking.publish(…)``.
    blocking: _Function
    #: Whether it also surrounds handlers of batches (``batch=…``), with the list of messages in the place of the message. Only middleware of
    #: an app or a client needs this.
    batches: bool = False

    def __post_init__(self) -> None:
        for name, function in (("asynchronous", self.asynchronous), ("blocking", self.blocking)):
            what = f"`{name}`"
            checked_callable(what, function, "with the message and `call_next`", object(), object())
            if is_async(function) != (name == "asynchronous"):
                raise InvalidTypeError(f"{what} must be {'an `async def`' if name == 'asynchronous' else 'a `def`'}")


#: A function around every attempt: an ``async def`` for ``async def`` handlers, a ``def`` for ``def`` handlers.
#:
#: It is called with the message and ``call_next``, which runs the attempt with this message. It runs in the context of the handler, and
#: within ``handler_timeout``. What it returns or raises is the result of the attempt: an error is retried, :class:`RetryAfter`,
#: :class:`Park` and :class:`Defer` count as in a handler, and without an error the message is acknowledged, even if ``call_next`` was
#: not called. If ``call_next`` is not done when the outermost middleware returns, or has failed in a task whose error nobody got, the attempt
#: has failed.
Middleware: TypeAlias = Callable[[Message, CallNext], Any] | DualMiddleware

#: What a middleware of batches calls with its list of messages.
BatchCallNext: TypeAlias = Callable[[list[Message]], Any]

#: A middleware of a consumer of batches: like :data:`Middleware`, with the list of messages in the place of the message. ``call_next`` takes that
#: very list, unchanged, and can be called once. It returns what the handler has answered. If the outermost middleware returns no list or tuple,
#: the answers of the handler count.
BatchMiddleware: TypeAlias = Callable[[list[Message], BatchCallNext], Any] | DualMiddleware

#: A function around every publish: an ``async def`` for ``await client.publish(…)``, a ``def`` for blocking clients.
#:
#: It is called with a :class:`Publishing` and ``call_next``, which publishes it. If it does not call ``call_next``, nothing is published.
#: What it raises, the caller of ``publish`` gets. If ``call_next`` is not done when the outermost one returns, the caller gets an error.
PublishMiddleware: TypeAlias = Callable[[Publishing, PublishNext], Any] | DualMiddleware


class Middlewares(NamedTuple):
    """Those of a client."""

    around_attempts: tuple[Middleware, ...] = ()
    around_publishes: tuple[PublishMiddleware, ...] = ()


#: None.
NO_MIDDLEWARE = Middlewares()


def checked_middleware(option: str, given: object) -> tuple[Any, ...]:
    """The functions in a list; raises naming the one that cannot work."""
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise InvalidTypeError(f"`{option}` must be a list of functions, not {type(given).__name__}")
    for function in given:
        if not isinstance(function, DualMiddleware):
            what = f"`{option}`: {name_of(function)}"
            checked_callable(what, function, "with the message and `call_next`", object(), object())
    return tuple(given)


def checked_middlewares(around_attempts: object, around_publishes: object) -> Middlewares:
    """Those of a client; raises naming the one that cannot work."""
    return Middlewares(
        checked_middleware("middleware", around_attempts), checked_middleware("publish_middleware", around_publishes)
    )


def for_batches(chain: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """Those of a client that also surround handlers of batches: others expect a single message."""
    return tuple(it for it in chain if isinstance(it, DualMiddleware) and it.batches)


def around_handler(
    handler: Callable[[Any], Any], chain: Sequence[Middleware | BatchMiddleware], batches: bool = False
) -> Callable[[Any], Any]:
    """The handler with its middleware, the first of which is the outermost. Without any, the handler itself.

    Raises if one is of the other kind than the handler.
    """
    if not chain:
        return handler
    asynchronous = is_async(handler)
    why = f"the handler is {'an `async def`' if asynchronous else 'a `def`'}"
    functions = [of_kind(function, asynchronous, "middleware", "msgs" if batches else "msg", why) for function in chain]
    kind: type = Message
    if batches:
        kind = list
    return _build_chain(functions, handler, "the handler", asynchronous, kind, lambda _: current_attempt.get())


def around_publish(
    send: Callable[[Publishing], Any], chain: Sequence[PublishMiddleware], asynchronous: bool
) -> Callable[[Publishing], Any]:
    """The function that sends a message, with its middleware, the first of which is the outermost.

    Raises if one is of the other kind than ``send``.
    """
    why = "`await client.publish(…)` needs an `async def`" if asynchronous else "a blocking client needs a `def`"
    functions = [of_kind(function, asynchronous, "publish_middleware", "publish", why) for function in chain]
    return _build_chain(functions, send, "the client", asynchronous, Publishing, lambda publishing: publishing._mark)


def check_kinds(middleware: Middlewares) -> None:
    """Raises for an ``async def``, which a blocking client could never call."""
    for function in middleware.around_attempts:
        of_kind(function, False, "middleware", "msg", "a blocking client needs a `def`")
    for publishing in middleware.around_publishes:
        of_kind(publishing, False, "publish_middleware", "publish", "a blocking client needs a `def`")


def of_kind(function: Any, asynchronous: bool, option: str, argument: str, why: str) -> _Function:
    """The function for ``async def`` or for ``def``; raises, saying ``why``, if it is of the other kind."""
    if isinstance(function, DualMiddleware):
        return function.asynchronous if asynchronous else function.blocking
    if is_async(function) == asynchronous:
        return function  # type: ignore[no-any-return]
    name = name_of(function)
    write = f"def {name}({argument}, call_next)"
    write = f"`async {write}`, which awaits `call_next({argument})`" if asynchronous else f"`{write}`"
    kind = "a `def`" if asynchronous else "an `async def`"
    raise InvalidTypeError(
        f"`{option}`: `{name}` is {kind}, and {why}; write {write}, or give one of each as `retryrmq.DualMiddleware`"
    )


class _MiddlewareRun:
    """What is known of one attempt, or one publish, while its middleware runs."""

    __slots__ = ("answers", "given", "has_ended", "made", "other_tasks", "running", "subject", "task")

    def __init__(self, subject: Any, task: object = None) -> None:
        self.subject = subject
        #: The messages of a batch, in their order.
        self.given = tuple(subject) if type(subject) is list else ()
        #: What the handler of a batch returned, because middleware may drop it.
        self.answers: Any = None
        #: The coroutines that the calls of `call_next` have made, weak because a mark counts references; and who has called it.
        self.made: list[tuple[weakref.ref[Any], str]] = []
        #: The calls of a ``def`` that run, and who has called it.
        self.running: list[tuple[object, str]] = []
        #: The tasks other than ``task`` in which a call has failed.
        self.other_tasks: list[asyncio.Task[Any]] = []
        self.task = task
        self.has_ended = False

    def check_subject(self, subject: Any, kind: type, who: str) -> None:
        """Raises if ``who`` has called `call_next` with something else than it was called with."""
        if type(subject) is not kind:
            raise TypeError(
                f"`call_next` takes the {kind.__name__} that {who} was called with, not {type(subject).__name__}"
            )
        if subject is not self.subject:
            another = "a copy of it, or another list" if kind is list else "another one"
            raise TypeError(f"`call_next` takes the {kind.__name__} that {who} was called with, not {another}")
        if kind is list and not is_same(subject, self.given):
            raise TypeError(
                f"`call_next` takes the list that {who} was called with, with the same messages in the same order; "
                "leave the list as it is"
            )
        if self.has_ended:
            raise RuntimeError(f"{who} called `call_next` after its end")

    def end(self, result: Any) -> Any:
        """The outermost middleware has returned ``result``. Raises if a call is not done, or has failed unnoticed."""
        for made, who in self.made:
            call = made()
            if call is not None and inspect.getcoroutinestate(call) != inspect.CORO_CLOSED:
                raise RuntimeError(f"{who} returned before `call_next(…)` was done; write `await call_next(…)`")
        for _, who in self.running:
            raise RuntimeError(f"{who} returned before `call_next(…)` was done; wait for it")
        for task in self.other_tasks:
            # It is unset as soon as somebody gets the error. `asyncio.wait` does not.
            if task.done() and getattr(task, "_log_traceback", False):
                error = task.exception()
                if error is not None:
                    raise error
        if self.given and not isinstance(result, list | tuple | BaseException):
            return self.answers
        return result


def is_same(messages: Sequence[Any], given: Sequence[Any]) -> bool:
    """Whether they are the very same messages in the same order."""
    return len(messages) == len(given) and all(map(operator.is_, messages, given))


#: A part of a chain: a middleware, or what it surrounds.
_Link: TypeAlias = Callable[[Any, _MiddlewareRun], Any]


def _build_chain(
    functions: Sequence[_Function],
    innermost: Callable[[Any], Any],
    who: str,
    asynchronous: bool,
    kind: type,
    mark_of: Callable[[Any], AttemptMark | None],
) -> Callable[[Any], Any]:
    """The functions, each around the next, the last one around ``innermost``, which ``who`` is."""
    link = _async_link if asynchronous else _link
    call = link(lambda subject, _: innermost(subject), who, mark_of, is_innermost=True)
    for function in reversed(functions):
        who = f"the middleware `{name_of(function)}`"
        call = link(_step(function, call, who, kind, mark_of, asynchronous), who, mark_of)

    async def call_next(subject: Any) -> Any:
        run = _MiddlewareRun(subject, asyncio.current_task())
        try:
            result = await call(subject, run)
        finally:
            run.has_ended = True
        return run.end(result)

    def call_next_here(subject: Any) -> Any:
        run = _MiddlewareRun(subject)
        try:
            result = call(subject, run)
        finally:
            run.has_ended = True
        return run.end(result)

    return call_next if asynchronous else call_next_here


def _step(
    function: _Function,
    call: _Link,
    who: str,
    kind: type,
    mark_of: Callable[[Any], AttemptMark | None],
    asynchronous: bool,
) -> _Link:
    run_call = _run_async_call if asynchronous else _run_call

    def step(subject: Any, run: _MiddlewareRun) -> Any:
        is_called = False

        def call_next(subject: Any) -> Any:
            nonlocal is_called
            run.check_subject(subject, kind, who)
            if kind is list and is_called:
                raise _called_twice(who)
            is_called = True
            return run_call(call, subject, run, who, mark_of)

        return function(subject, call_next)

    return step


def _run_async_call(
    call: _Link, subject: Any, run: _MiddlewareRun, who: str, mark_of: Callable[[Any], AttemptMark | None]
) -> Any:
    made = call(subject, run)
    run.made.append((weakref.ref(made), who))
    return track_call(mark_of(subject), made, "call_next", who)


def _run_call(call: _Link, subject: Any, run: _MiddlewareRun, who: str, _: Callable[[Any], AttemptMark | None]) -> Any:
    running = (object(), who)
    run.running.append(running)
    try:
        return call(subject, run)
    finally:
        run.running.remove(running)


def _called_twice(who: str) -> RuntimeError:
    return RuntimeError(f"{who} called `call_next` twice; a batch is handled once, because each message has one answer")


def _link(
    function: _Link, who: str, mark_of: Callable[[Any], AttemptMark | None], *, is_innermost: bool = False
) -> _Link:
    def call_next(subject: Any, run: _MiddlewareRun) -> Any:
        result = function(subject, run)
        # Here, so that the middleware around it sees what a worker would make of this result.
        if result is not None:
            _result_check.check(result, False, who)
        mark = mark_of(subject)
        if mark is not None and mark.calls:
            mark.check(False)
        if is_innermost:
            run.answers = result
        return result

    return call_next


def _async_link(
    function: _Link, who: str, mark_of: Callable[[Any], AttemptMark | None], *, is_innermost: bool = False
) -> _Link:
    async def call_next(subject: Any, run: _MiddlewareRun) -> Any:
        if run.has_ended:  # its task has begun too late
            raise RuntimeError(f"the middleware returned before {who} began")
        try:
            result = await function(subject, run)
            if result is not None:
                _result_check.check(result, True, who)
            mark = mark_of(subject)
            if mark is not None and mark.calls:
                mark.check(True)
        except BaseException:
            task = asyncio.current_task()
            if task is not None and task is not run.task:
                run.other_tasks.append(task)
            raise
        if is_innermost:
            run.answers = result
        return result

    call_next.__qualname__ = "call_next"
    return call_next
