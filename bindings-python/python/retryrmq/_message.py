"""The parts of ``Message`` that are written in Python: settling by hand, and the history as records."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

from ._duration import Duration, seconds
from ._native import Message, time
from .errors import InvalidTypeError
from .outcome import ACK, End, classify, utf8_safe
from .record import HistoryEntry


class Settled:
    """The result of ``ack``, ``retry``, ``park`` and ``defer``. The message is settled already; awaiting this does nothing."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_SETTLED = Settled()


#: How simulated messages were settled by hand, by their identity. The native half cannot settle them.
simulated: dict[int, End | None] = {}


def _settle(message: Message, end: End) -> None:
    if simulated and id(message) in simulated:
        simulated[id(message)] = simulated[id(message)] or end  # the first counts
    else:
        message._settle(end)


def ack(message: Message) -> Settled:
    _settle(message, ACK)
    return _SETTLED


def retry(message: Message, error: BaseException | str | None, delay: Duration | None) -> Settled:
    after = None if delay is None else seconds(delay, "delay")
    end: End
    if error is None or isinstance(error, str):
        end = ("retry", utf8_safe(error or "") or "the consumer asked for a retry", "", [], None, after)
    elif isinstance(error, BaseException):
        judgement = classify(error, stack=message._may_park())
        end = judgement if after is None else ("retry", *judgement[1:5], after)
    else:
        raise InvalidTypeError(f"`error` must be an exception or a string, not {type(error).__name__}")
    _settle(message, end)
    return _SETTLED


def park(message: Message, reason: BaseException | str) -> Settled:
    if isinstance(reason, BaseException):
        _settle(message, ("park", *classify(reason)[1:5], None))
    elif isinstance(reason, str):
        _settle(message, ("park", utf8_safe(reason), "", [], None, None))
    else:
        raise InvalidTypeError(f"`reason` must be a string or an exception, not {type(reason).__name__}")
    return _SETTLED


def defer(message: Message, delay: Duration) -> Settled:
    _settle(message, ("defer", "", "", [], None, seconds(delay, "delay")))
    return _SETTLED


def history(message: Message) -> list[HistoryEntry]:
    return [HistoryEntry(**entry | {"at": time(entry["at"])}) for entry in json.loads(message._history())]
