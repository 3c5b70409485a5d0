"""Messages that one call of a handler gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ._native import Message
from .outcome import End


class Batch:
    """Messages that a handler gets at once."""

    __slots__ = ("messages",)

    #: As of a message, for the log.
    message_id = None
    attempt = None

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages

    @property
    def queue(self) -> str:
        return self.messages[0].queue

    @property
    def unsettled(self) -> list[Message]:
        """The messages without an answer."""
        return [message for message in self.messages if not message._is_settled]

    @property
    def _is_settled(self) -> bool:
        return not self.unsettled

    def _may_park(self) -> bool:
        return any(message._may_park() for message in self.messages)

    def _settle(self, end: End) -> None:
        for message in self.unsettled:
            message._settle(end)

    def __repr__(self) -> str:
        return f"<a batch of {len(self.messages)} messages>"


def messages_of(units: Iterable[Message | Batch]) -> list[Message]:
    """The messages, also those of batches, that are not settled."""
    messages: list[Message] = []
    for unit in units:
        if isinstance(unit, Batch):
            messages += unit.unsettled
        else:
            messages.append(unit)
    return messages
