"""Handlers on the core's simulation of a queue, and a native client that keeps what they publish."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

from . import _message, _native, _result_check
from ._attempts import CANCEL_GRACE
from ._batch_workers import batches_of_one
from ._native import Message
from ._unawaited import AttemptMark, current_attempt
from .app import App, is_on_a_loop, simulated_client
from .client import Client, outgoing
from .errors import ClosedError, InvalidOptionError, InvalidTypeError
from .options import Plan
from .outcome import ACK, End, classify, timeout_end, unreadable_error

#: A body, or a mapping with ``body`` and other arguments of ``publish``.
Input: TypeAlias = bytes | str | Mapping[str, Any]
#: What can happen to a message after an attempt.
Became: TypeAlias = Literal["acked", "retried", "deferred", "parked", "dropped", "rejected"]


@dataclass(frozen=True)
class Attempt:
    """One call of the handler."""

    #: The index of the message; 0 is the first.
    index: int
    #: The message, as the handler got it.
    message: Message
    #: When the attempt began, on the virtual clock.
    at: timedelta
    #: What happened to the message.
    became: Became
    #: What the handler raised, if it raised.
    error: BaseException | None
    #: How long the message waits then; ``None`` if it does not wait.
    delay: timedelta | None

    @property
    def number(self) -> int:
        """The number of the attempt; 1 is the first delivery. A deferral uses up none."""
        return self.message.attempt


@dataclass(frozen=True)
class Ended:
    """How a message ended."""

    #: The index of the message; 0 is the first.
    index: int
    #: ``acked``, ``parked``, ``dropped`` or ``rejected``.
    became: Became
    #: When, on the virtual clock.
    at: timedelta
    #: Why it was parked or dropped.
    reason: str | None = None
    #: The parked message, with its record.
    message: Message | None = None


@dataclass(frozen=True)
class Published:
    """A message that was published: by a handler through its app, or through a :class:`FakeClient`."""

    #: The index of the message that was handled; 0 is the first. ``None`` if no handler of the test published it.
    index: int | None
    #: When, on the virtual clock; 0 if no handler published it.
    at: timedelta
    #: The published message, as a consumer would get it. No queue is known: its ``queue`` says nothing.
    message: Message
    #: Its ``delay``; ``None`` without.
    delay: timedelta | None


@dataclass(frozen=True)
class Simulated:
    """The result: every attempt in order, how each message ended, and what was published."""

    attempts: list[Attempt] = field(default_factory=list)
    #: In the order of the messages.
    ends: list[Ended] = field(default_factory=list)
    #: How long all of it took, on the virtual clock.
    elapsed: timedelta = timedelta()
    #: What the handlers published through the app or the :class:`FakeClient`, in that order; also in attempts that failed afterwards. It is
    #: not delivered to anybody.
    published: list[Published] = field(default_factory=list)

    @property
    def acked(self) -> list[Ended]:
        """The messages that were handled."""
        return [end for end in self.ends if end.became == "acked"]

    @property
    def parked(self) -> list[Ended]:
        """The messages that were parked."""
        return [end for end in self.ends if end.became == "parked"]

    def attempts_of(self, index: int) -> list[Attempt]:
        """The attempts at the message with this index."""
        return [attempt for attempt in self.attempts if attempt.index == index]


_MARK = "retryrmq-simulated"
#: The most attempts: a handler that defers its messages again and again would never end.
_MOST = 100_000


async def simulate(app: App, queue: str, messages: Iterable[Input]) -> Simulated:
    """Runs the handler of ``queue`` on ``messages``, one at a time, until every message has ended.

    Waiting takes no time: the clock jumps to the next arrival. Only the broker is simulated: whatever the handler awaits or calls is real,
    except for the app. What the handler publishes with ``app.publish``, ``app.client`` or ``app.blocking`` is collected in
    :attr:`Simulated.published`, and confirmed at once. Other uses of that client raise :class:`ClosedError`. A thread that the handler
    starts has to run in a copy of its context, as with ``asyncio.to_thread``. A client of your own is real.

    A handler of batches (``batch=…``) gets batches of one message. ``handler_timeout`` is measured in real time for an ``async def``. A ``def`` runs on this thread, without a timeout. Raises
    :class:`InvalidOptionError` if the app has no handler for ``queue``.
    """
    if not isinstance(app, App):
        raise InvalidTypeError(f"`app` must be an App, not {type(app).__name__}")

    def enter(attempt: CurrentAttempt) -> None:
        client = Client(cast("_native.Client", CollectingClient(attempt.keep)), app._address.middleware)
        simulated_client.set((app, client))

    return await run_simulation(plan_of(queue, app._plans, "the app"), messages, enter)


@dataclass(frozen=True)
class CurrentAttempt:
    """The attempt that runs, as what it publishes is recorded."""

    index: int
    at: timedelta
    published: list[Published]

    def keep(self, message: Message, delay: timedelta | None) -> None:
        self.published.append(Published(self.index, self.at, message, delay))


async def run_simulation(plan: Plan, messages: Iterable[Input], enter: Callable[[CurrentAttempt], None]) -> Simulated:
    """Runs the handler of ``plan`` on ``messages``. ``enter`` is called in the context of each attempt before it."""
    queue = plan.queue
    if plan.native.batch is not None:
        plan = batches_of_one(plan)
    simulation = _native.Simulation(plan.native)
    if isinstance(messages, str | bytes | bytearray | Mapping) or not isinstance(messages, Iterable):
        raise InvalidTypeError(f"`messages` must be a list of messages, as in [b'7'], not {type(messages).__name__}")
    for index, message in enumerate(messages):
        simulation.publish(_published(queue, message, index))
    result = Simulated()
    ends: dict[int, Ended] = {}
    while (delivered := simulation.next()) is not None:
        index = int(delivered.headers.pop(_MARK))
        at = timedelta(seconds=simulation.elapsed)
        _message.simulated[id(delivered)] = None
        context = contextvars.copy_context()
        context.run(enter, CurrentAttempt(index, at, result.published))
        try:
            error = await _run_attempt(plan, delivered, context)
        finally:
            by_hand = _message.simulated.pop(id(delivered))
        became, delay, reason, parked = _settled(simulation, plan, delivered, error, by_hand)
        wait = None if delay is None else timedelta(seconds=delay)
        result.attempts.append(Attempt(index, delivered, at, became, error, wait))  # type: ignore[arg-type]
        if parked is not None:
            del parked.headers[_MARK]
        if delay is None:
            ends[index] = Ended(index, became, at, reason, parked)  # type: ignore[arg-type]
        if len(result.attempts) > _MOST:
            raise RuntimeError(f"the simulation of {queue!r} does not end: {_MOST} attempts were made")
    result.ends.extend(ends[index] for index in sorted(ends))
    return replace(result, elapsed=timedelta(seconds=simulation.elapsed))


def simulate_blocking(app: App, queue: str, messages: Iterable[Input]) -> Simulated:
    """Like :func:`simulate`, for a test that is not a coroutine. Raises :class:`InvalidTypeError` on a running event loop."""
    if is_on_a_loop():
        raise InvalidTypeError(
            "`simulate_app` and `simulate_blocking` run an event loop of their own, and one is running here; in an `async def` write "
            "`await retryrmq.testing.simulate(app, …)`"
        )
    return asyncio.run(simulate(app, queue, messages))


def plan_of(queue: str, plans: Sequence[Plan], whose: str) -> Plan:
    """The plan with the handler of ``queue``."""
    for plan in plans:
        if plan.queue == queue:
            return plan
    known = ", ".join(repr(plan.queue) for plan in plans) or "none"
    raise InvalidOptionError(f"{whose} has no handler for `queue` {queue!r}; it has {known}")


def _published(queue: str, message: Input, index: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if isinstance(message, Mapping):
        options = dict(message)
        if "body" not in options:
            raise InvalidOptionError("a message that is given as a mapping needs a `body`")
        body = options.pop("body")
    else:
        body = message
    routing_key = options.pop("routing_key", queue)
    published = outgoing(routing_key, body, options)  # type: ignore[arg-type]
    published["headers"] = {**(published.get("headers") or {}), _MARK: index}
    return published


class _TimedOut(TimeoutError):
    """The error of a handler that ran longer than its timeout."""


def _settled(
    simulation: _native.Simulation, plan: Plan, message: Message, error: BaseException | None, by_hand: End | None
) -> tuple[str, float | None, str | None, Message | None]:
    if by_hand is not None:
        return simulation.settle(message, by_hand)
    if error is None:
        return simulation.settle(message, ACK)
    if isinstance(error, _TimedOut):
        return simulation.settle(message, timeout_end(cast("float", plan.native.handler_timeout)))
    try:
        return simulation.settle(message, classify(error, plan.fatal))
    except BaseException as trouble:
        return simulation.settle(message, unreadable_error(error, trouble))


class DoneOperation:
    """The operation of something that is done at once."""

    def done(self) -> bool:
        return True

    def result(self) -> None: ...

    def wait(self, seconds: float | None = None) -> None: ...


class CollectingClient:
    """A native client without a broker. It gives what is published to ``keep``."""

    server: Mapping[str, str] = MappingProxyType({"product": "simulation", "version": _native.VERSION})

    def __init__(self, keep: Callable[[Message, timedelta | None], None]) -> None:
        self._keep = keep

    def publish(self, message: dict[str, Any]) -> DoneOperation:
        self._keep(*as_published(message))
        return DoneOperation()

    def __getattr__(self, name: str) -> Any:
        raise ClosedError(f"`{name}` needs a broker, and a simulation has none; only `publish` is collected")


def as_published(message: dict[str, Any]) -> tuple[Message, timedelta | None]:
    """The message as a consumer would get it, and its delay. Raises for what a client refuses, also because of the delay."""
    _queue_of(message)
    delay = message.pop("delay", None)
    sent = _queue_of(message).next()
    assert sent is not None  # without `dlx` no count in its headers keeps a message back
    return sent, None if delay is None else timedelta(seconds=delay)


def _queue_of(message: Mapping[str, Any]) -> _native.Simulation:
    """A queue with this message, from which it comes as it would from a broker."""
    queue = _native.Simulation(_native.Options('{"queue": "published"}'))
    queue.publish(message)
    return queue


async def _run_attempt(plan: Plan, message: Message, context: contextvars.Context) -> BaseException | None:
    """Runs the handler in this context. Returns what it raised."""
    assert plan.call is not None
    mark = AttemptMark()
    context.run(current_attempt.set, mark)
    if plan.is_async:
        handler = cast("Callable[[Message], Awaitable[Any]]", plan.call)
        return await _run_with_timeout(handler, message, plan, context, mark)
    try:
        result = context.run(plan.call, message)
        if result is not None:
            _result_check.check(result, is_async=False)
        mark.check(is_async=False)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    return None


async def _run_with_timeout(
    handler: Callable[[Message], Awaitable[Any]],
    message: Message,
    plan: Plan,
    context: contextvars.Context,
    mark: AttemptMark,
) -> BaseException | None:
    async def guarded() -> BaseException | None:
        try:
            result = await handler(message)
            if result is not None:
                _result_check.check(result, is_async=True)
            mark.check(is_async=True)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also a CancelledError of the handler's own
            return error
        return None

    limit = plan.native.handler_timeout
    # A task of its own: cancelling the simulation must not look like a failed attempt.
    task = context.run(asyncio.ensure_future, guarded())
    try:
        began = time.monotonic()
        await asyncio.wait((task,), timeout=limit)
        # A handler that blocks the event loop ends before its timeout is noticed.
        if task.done() and (limit is None or time.monotonic() - began < limit):
            return task.result()
        task.cancel()
        await asyncio.wait((task,), timeout=CANCEL_GRACE)
        return _TimedOut(timeout_end(cast("float", limit))[1])
    finally:
        task.cancel()
