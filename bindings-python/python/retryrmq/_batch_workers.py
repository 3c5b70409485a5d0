"""Handlers that get several messages at once.

To the workers a batch is one message: it is taken, handled, timed and ended as a whole. Only here it is known to be several, each of which has its
own answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from . import _result_check
from ._attempts import failed
from ._batch import Batch, messages_of
from ._native import Batches, Message, Operation, Subscription
from .middleware import is_same
from .options import Plan


class BatchAnswerError(ValueError):
    """A handler answered for another number of messages than it got, changed their list, or answered something that is no list or tuple. All
    of them have failed, since nobody knows which answer is whose."""


class _BatchSubscription:
    """A subscription whose messages are batches. The core forms them: whatever is taken at once is for one handler."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self.ready: Callable[[], Operation] = subscription.ready
        self.close = subscription.close
        self.abandon = subscription.abandon
        self.wait_closed: Callable[[], Operation] = subscription.wait_closed

    @property
    def is_closing(self) -> bool:
        return self._subscription.is_closing

    def batches(self, most: int | None = None) -> Batches:
        return cast("Batches", self)

    def take(self, ended: bool) -> list[Batch]:
        return _one(self._subscription.take(1))

    def take_blocking(self, seconds: float) -> list[Batch]:
        return _one(self._subscription.take_blocking(1, seconds))

    def ack(self, units: Iterable[Message | Batch]) -> None:
        self._subscription.ack(messages_of(units))

    def give_back(self, units: Iterable[Message | Batch]) -> None:
        self._subscription.give_back(messages_of(units))


def _one(messages: list[Message]) -> list[Batch]:
    return [Batch(messages)] if messages else []


def batched(plan: Plan, subscription: Subscription) -> tuple[Plan, Subscription]:
    """The plan and the subscription as workers get them."""
    call: Any = plan.call

    async def handle(batch: Batch) -> None:
        messages = list(batch.messages)
        _settle_failed(plan, batch, batch_results(await call(messages), messages, batch.messages, is_async=True))

    def handle_here(batch: Batch) -> None:
        messages = list(batch.messages)
        _settle_failed(plan, batch, batch_results(call(messages), messages, batch.messages, is_async=False))

    handler: Any = handle if plan.is_async else handle_here
    return replace(plan, call=handler), cast("Subscription", _BatchSubscription(subscription))


def batches_of_one(plan: Plan) -> Plan:
    """The plan for somebody who has one message at a time, such as a simulation: each is a batch."""
    call: Any = plan.call

    async def handle(message: Message) -> None:
        messages = [message]
        _raise(batch_results(await call(messages), messages, (message,), is_async=True))

    def handle_here(message: Message) -> None:
        messages = [message]
        _raise(batch_results(call(messages), messages, (message,), is_async=False))

    handler: Any = handle if plan.is_async else handle_here
    return replace(plan, call=handler)


def _raise(answers: Sequence[BaseException | None]) -> None:
    for error in answers:
        if error is not None:
            raise error


def _settle_failed(plan: Plan, batch: Batch, answers: Sequence[BaseException | None]) -> None:
    """Ends the attempts that failed. Those without an error are acknowledged together, when the handler was in time."""
    for message, error in zip(batch.messages, answers, strict=False):
        if error is not None and not message._is_settled:
            failed(plan, message, error)


def batch_results(
    result: Any, messages: Sequence[Message], given: Sequence[Message], is_async: bool
) -> Sequence[BaseException | None]:
    """What a handler answered for each of the messages it was ``given``: an error, or ``None``. Empty if it has no errors. Raises if all have
    failed.

    ``messages`` is the list that the handler had, and may have changed.
    """
    if result is None:
        return ()
    if isinstance(result, BaseException):
        raise result
    if not isinstance(result, list | tuple):
        _result_check.check(result, is_async)
        raise BatchAnswerError(
            f"the handler answered with the type {type(result).__name__}; return `None`, or a list with one answer for each message"
        )
    if not is_same(messages, given):
        raise BatchAnswerError(
            "the handler, or a middleware, changed the list of messages, so nobody knows which answer is whose; sort a copy"
        )
    if len(result) != len(given):
        raise BatchAnswerError(
            f"the handler answered {len(result)} of {len(given)} messages; return one answer for each, in their order"
        )
    return [_result_error(answer, is_async) for answer in result]


def _result_error(answer: Any, is_async: bool) -> BaseException | None:
    if answer is None or isinstance(answer, BaseException):
        return answer
    try:
        if isinstance(answer, type) and issubclass(answer, BaseException):
            return answer()
        _result_check.check(answer, is_async)
    except BaseException as error:
        return error
    return None
