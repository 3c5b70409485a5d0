"""The options of a consumer. They are checked at the call, before there is a connection."""

from __future__ import annotations

import difflib
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, cast

from . import _native
from ._duration import Duration, seconds
from ._listeners import Listener
from ._native import Message
from ._signatures import is_async
from ._typed_bodies import checked_batch_handler, with_typed_body
from .errors import InvalidOptionError, InvalidTypeError
from .middleware import BatchMiddleware, Middleware, around_handler, checked_middleware, for_batches
from .policy import Policy, Rule

#: How failed messages wait. With ``service`` they are handed over to ``retryrmq serve``, whose policy decides.
Strategy: TypeAlias = Literal["retry-queues", "dead-letter", "native", "delayed-exchange", "service"]

#: How a missing work queue is created. ``quorum`` or ``classic``: of this type, and messages that the broker itself gives up on go to
#: the parking queue. A mapping: with exactly these arguments, ``{}`` for none. ``existing``: it is never created.
WorkQueue: TypeAlias = Literal["quorum", "classic", "existing"] | Mapping[str, str | int | bool]

#: A function that gets a message. A ``def`` runs on a thread, an ``async def`` on the event loop. Its return value is ignored, except for
#: a coroutine, a generator or a function: that work would never run, so the attempt has failed.
Handler: TypeAlias = Callable[[Message], Any]

#: A function that gets the body, decoded from JSON into the type with which its first parameter is annotated, and the message if it has a
#: second parameter. The type may be a pydantic model, a ``msgspec.Struct``, a dataclass, a ``TypedDict``, a ``list[…]`` or ``dict[…]`` of
#: those, or a plain type.
BodyHandler: TypeAlias = Callable[[Any], Any] | Callable[[Any, Message], Any]


@dataclass(frozen=True)
class Pause:
    """The retry budget: when a consumer stops taking messages for a while.

    If more than the share ``failures`` of the last ``window`` attempts failed, the consumer takes no messages for ``duration``. Then it takes
    one message as a probe: if it succeeds, the consumer resumes; if it fails, the next pause begins.
    """

    #: The share of failed attempts above which the consumer pauses: at least 0 and below 1; 0.5 by default.
    failures: float = _native.PAUSE[0]
    #: How many of the last attempts are counted: 1 to 10 000; 20 by default.
    window: int = _native.PAUSE[1]
    #: How long a pause lasts, at most 365 days; 30 seconds by default.
    duration: Duration = _native.PAUSE[2]

    def __post_init__(self) -> None:
        if isinstance(self.failures, bool) or not isinstance(self.failures, int | float):
            raise InvalidTypeError(f"`failures` must be a number, not {type(self.failures).__name__}")
        if not math.isfinite(self.failures):
            raise InvalidOptionError(
                f"`failures` cannot be {self.failures}; it is a share of the attempts, such as 0.5"
            )
        _whole("window", self.window, 1, 10_000)
        seconds(self.duration, "duration")
        _native.Options(json.dumps({"queue": "orders", "pause": _pause(self)}))  # the core checks what it makes of it


class ConsumerOptions(TypedDict, total=False):
    """The options of :meth:`App.consume` and :meth:`Client.consume`, in the same order as in every language."""

    #: Whether failed messages are retried and parked. Off by default: a failed message is rejected without requeue, and the queue's own
    #: dead-lettering decides. Without a dead-letter exchange the broker drops it. A consumer that does not get this option logs a warning when
    #: it starts; ``False`` silences it.
    dlx: bool
    #: The policy for failures that no rule matches. The default is ``exponential(1s, factor=4, max=5m, retries=5)``. Needs ``dlx``.
    retry: Policy | str
    #: How failed messages wait; ``retry-queues`` by default.
    strategy: Strategy
    #: Rules that choose another policy. The first rule that matches decides. Needs ``dlx``.
    rules: Sequence[Rule | str]
    #: How many messages may be unacknowledged at a time (AMQP ``basic.qos``): 1 to 65535, 64 by default.
    prefetch: int
    #: How many bytes of bodies of unacknowledged messages the consumer holds, about. The broker sends fewer messages while they are large. What
    #: does not fit is returned and comes again. A message larger than that is handled while no other one is. No limit by default.
    prefetch_bytes: int
    #: The priority among the consumers of the queue (``x-priority``): while a consumer of a higher priority has room in its ``prefetch``,
    #: it gets all messages. May be negative; 0 by default.
    priority: int
    #: How many handlers run at a time, 1 to 100 000. 16 by default for an ``async def`` handler. 1 for a ``def`` handler: its code must be
    #: thread-safe before you set more. Needs a handler.
    concurrency: int
    #: How many messages a handler gets at once, at most: 1 to 10 000. It is called with a list of messages. If it returns nothing, all have
    #: succeeded; if it raises, all have failed; or it returns a list with one answer for each message, in their order: ``None``, or an error.
    #: By default it gets single messages. ``concurrency`` counts batches then. Needs a handler.
    batch: int
    #: How long an incomplete batch waits for more messages, from its first message on: 200 ms by default, at most one minute. With ``0`` the
    #: handler gets what is there. Needs ``batch``.
    batch_wait: Duration
    #: How long a handler may run, at most 365 days; then the attempt has failed. An ``async def`` handler is cancelled. A ``def`` handler keeps
    #: its thread, and another thread takes its place. No limit by default. Needs a handler.
    handler_timeout: Duration
    #: Whether messages that are given up are parked. On by default. Off: they are acknowledged and dropped. Needs ``dlx``.
    park: bool
    #: Stops taking messages for a while when too many attempts fail. ``True`` for the default :class:`Pause`. Off by default.
    pause: Pause | bool
    #: A function that is called with each event, in order: on the event loop for an ``async def`` handler and for ``async for``, which it must
    #: not block, otherwise on a thread of its own. Up to 10 000 events wait for it; further ones are dropped with a warning. Its errors are
    #: logged and do not affect messages.
    on_event: Listener
    #: Exception classes that no retry can fix: the message is parked at once as ``fatal``. Needs ``dlx`` and a handler.
    fatal: type[BaseException] | tuple[type[BaseException], ...]
    #: Functions around every attempt, the outermost first, inside those of the client. Each is called with the message and ``call_next``, or
    #: with ``batch`` with the list of messages. Needs a handler.
    middleware: Sequence[Middleware | BatchMiddleware]
    #: What happens to a message whose body is not of the type that the handler's first parameter is annotated with. With ``park``, the
    #: default, it is parked at once as ``undecodable``; with ``retry`` it is retried, for bodies that may be valid later, such as after a
    #: deployment. Needs such a handler.
    invalid_body: Literal["park", "retry"]
    #: Whether missing queues are created. On by default. Off: they must exist, and the user needs no ``configure`` permission.
    declare: bool
    #: How the work queue is created if it is missing; a quorum queue by default. An existing queue is used as it is; only the strategies
    #: ``dead-letter`` and ``native`` compare its arguments. Everyone who declares the queue must use the same arguments. With
    #: ``existing`` it is never created: the start raises :class:`QueueNotFoundError` until somebody else has declared it.
    work_queue: WorkQueue
    #: Allows a queue whose name is reserved for the queues of another one: ``*.parked``, ``*.unreadable`` or ``*.retry.<number>``.
    #: Consuming it removes the messages there. Off by default: such a name is refused.
    reserved_name: bool
    #: How long closing waits for running handlers: 30 seconds by default, at most 365 days. Coroutines that still run then are cancelled,
    #: and their messages are requeued.
    drain_timeout: Duration
    #: Crashes of its consumer after which a message is parked as ``delivery-limit``: 1 to 1 000 000; 10 by default.
    crash_limit: int
    #: Deferrals after which a message is parked as ``exhausted``: 1 to 1 000 000; 1000 by default.
    defer_limit: int


def _whole(option: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidTypeError(f"`{option}` must be an int, not {type(value).__name__}")
    if not least <= value <= most:
        raise InvalidOptionError(f"`{option}` must be between {least} and {most}, not {value}")
    return value


def checked_flag(option: str, value: object) -> bool:
    """True or False; raises naming the option."""
    if not isinstance(value, bool):
        raise InvalidTypeError(f"`{option}` must be True or False, not {type(value).__name__}")
    return value


def _policy(value: object) -> str:
    if isinstance(value, Policy | str):
        return checked_text("retry", str(value))
    raise InvalidTypeError(
        f"`retry` must be a policy or a string such as 'fixed(5s, retries=3)', not {type(value).__name__}"
    )


def _rules(value: object) -> list[Any]:
    if isinstance(value, str | Rule) or not isinstance(value, Sequence):
        raise InvalidTypeError(f"`rules` must be a list of rules or strings, not {type(value).__name__}")
    for rule in value:
        if not isinstance(rule, Rule | str):
            raise InvalidTypeError(f"`rules` must hold rules or strings, not {type(rule).__name__}")
        for text in (rule,) if isinstance(rule, str) else rule._texts():
            checked_text("rules", text)
    return [rule._parts if isinstance(rule, Rule) else rule for rule in value]


def _pause(value: object) -> dict[str, float] | None:
    if value is False:
        return None
    pause = Pause() if value is True else value
    if not isinstance(pause, Pause):
        raise InvalidTypeError(f"`pause` must be a Pause, True or False, not {type(value).__name__}")
    return {"failures": pause.failures, "window": pause.window, "duration": seconds(pause.duration, "pause")}


def _work_queue(value: object) -> str:
    """The text that every language reads: a word, or the arguments as JSON."""
    if isinstance(value, str):
        return checked_text("work_queue", value)
    if not isinstance(value, Mapping):
        raise InvalidTypeError(
            f"`work_queue` must be a word such as 'existing', or a dict of arguments, not {type(value).__name__}"
        )
    for name, argument in value.items():
        checked_text("work_queue", name)
        what = f"`work_queue`: the argument {name!r}"
        if isinstance(argument, str):
            encoded("work_queue", argument)
        elif not isinstance(argument, int):
            raise InvalidTypeError(f"{what} must be a str, an int, True or False, not {type(argument).__name__}")
        elif not -(2**63) <= argument < 2**63:
            raise InvalidOptionError(f"{what} does not fit AMQP's 64-bit integers")
    return json.dumps(dict(value))


def checked_text(option: str, value: object) -> str:
    """A text that can be sent; raises naming the option."""
    if not isinstance(value, str):
        raise InvalidTypeError(f"`{option}` must be a str, not {type(value).__name__}")
    encoded(option, value)
    return value


def encoded(option: str, value: str) -> bytes:
    """A text as UTF-8, which has no lone surrogates; Python's texts may."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidOptionError(
            f"`{option}` holds a lone surrogate at {error.start}, which UTF-8 cannot encode"
        ) from None


def no_option(name: str, known: Sequence[str]) -> InvalidTypeError:
    """The error for an unknown option."""
    close = difflib.get_close_matches(name, known, 1)
    hint = f" did you mean `{close[0]}`? The" if close else " the"
    return InvalidTypeError(f"there is no option `{name}`;{hint} options are {', '.join(known)}")


def _when_invalid(value: object) -> str | None:
    if value is None:
        return None
    if checked_text("invalid_body", value) not in ("park", "retry"):
        raise InvalidOptionError(f"`invalid_body` must be 'park' or 'retry', not {value!r}")
    return cast("str", value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "dlx": functools.partial(checked_flag, "dlx"),
    "retry": _policy,
    "strategy": functools.partial(checked_text, "strategy"),
    "rules": _rules,
    "prefetch": lambda value: _whole("prefetch", value, 1, 65_535),
    "prefetch_bytes": lambda value: _whole("prefetch_bytes", value, 1, 2**53 - 1),
    "priority": lambda value: _whole("priority", value, -(2**31), 2**31 - 1),
    "concurrency": lambda value: _whole("concurrency", value, 1, 100_000),
    "batch": lambda value: _whole("batch", value, 1, 10_000),
    "batch_wait": lambda value: seconds(value, "batch_wait"),
    "handler_timeout": lambda value: seconds(value, "handler_timeout"),
    "park": functools.partial(checked_flag, "park"),
    "pause": _pause,
    "declare": functools.partial(checked_flag, "declare"),
    "work_queue": _work_queue,
    "reserved_name": functools.partial(checked_flag, "reserved_name"),
    "drain_timeout": lambda value: seconds(value, "drain_timeout"),
    "crash_limit": lambda value: _whole("crash_limit", value, 1, 1_000_000),
    "defer_limit": lambda value: _whole("defer_limit", value, 1, 1_000_000),
}


@dataclass(frozen=True)
class Plan:
    """A consumer that is not running yet: all that is known before there is a connection."""

    queue: str
    native: _native.Options
    fatal: tuple[type[BaseException], ...]
    on_event: Listener | None
    handler: Handler | BodyHandler | None
    #: The handler as a function of the message, with its middleware.
    call: Handler | None

    @property
    def is_async(self) -> bool:
        return self.handler is not None and is_async(self.handler)


#: Options that concern the running of a handler.
_OF_HANDLERS = ("concurrency", "handler_timeout", "fatal", "middleware", "invalid_body", "batch", "batch_wait")


def refuse_without_handler(options: ConsumerOptions) -> None:
    """Raises for options that need a handler, because iteration would ignore them."""
    for option in _OF_HANDLERS:
        if options.get(option) is not None:
            raise InvalidOptionError(
                f"`{option}` needs a handler; when iterating, settle each message yourself, for example with `msg.park(error)`"
            )


def plan(
    queue: str, handler: Handler | BodyHandler | None, options: ConsumerOptions, outer: tuple[Middleware, ...] = ()
) -> Plan:
    """Checks all options; raises naming the one that cannot work. ``outer`` is the middleware of the client."""
    checked_text("queue", queue)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    fatal = given.pop("fatal", ())
    if isinstance(fatal, type):
        fatal = (fatal,)
    if not isinstance(fatal, tuple | list) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in fatal
    ):
        raise InvalidTypeError(f"`fatal` must be a tuple of exception classes, not {fatal!r}")
    on_event: Any = given.pop("on_event", None)
    if on_event is not None and (not callable(on_event) or is_async(on_event)):
        raise InvalidTypeError("`on_event` must be a function that is called with each event, not a coroutine function")
    middleware = checked_middleware("middleware", given.pop("middleware", ()))
    when_invalid = _when_invalid(given.pop("invalid_body", None))
    unknown = given.keys() - _READERS.keys()
    if unknown:
        raise no_option(min(unknown), [*_READERS, "on_event", "fatal", "middleware", "invalid_body"])
    read = {name: _READERS[name](value) for name, value in given.items()}
    if handler is not None and not is_async(handler):
        read.setdefault("concurrency", 1)
    native = _native.Options(json.dumps({"queue": queue, "fatal": bool(fatal), **read}))
    call: Handler | None = None
    if handler is not None and native.batch is not None:
        call = around_handler(
            checked_batch_handler(handler, when_invalid), (*for_batches(outer), *middleware), batches=True
        )
    elif handler is not None:
        call = around_handler(with_typed_body(handler, when_invalid), (*outer, *middleware))
    return Plan(queue, native, tuple(fatal), cast("Listener | None", on_event), handler, call)
