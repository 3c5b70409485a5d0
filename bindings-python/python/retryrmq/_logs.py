"""Our loggers. Texts that publishers choose (ids, bodies quoted by errors) cannot end a line, or control a terminal. A record also has what it is
about as attributes, for loggers that write JSON."""

from __future__ import annotations

import contextlib
import logging
import re
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from . import _native
from ._native import Message


def escaped(text: str) -> str:
    """The text with escapes for everything that is not printable: line ends, control characters, marks of text direction."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _trace(info: Any) -> str:
    """A traceback. The lines of an error's text are indented, so that they do not look like lines of the log."""
    return "".join(map(_indented, traceback.format_exception(*info))).rstrip("\n")


def _indented(part: str) -> str:
    lines = "\n".join(map(escaped, part.split("\n")))
    # The text between two errors of a chain begins with an empty line.
    return lines if lines.startswith("\n") else re.sub(r"\n(?=\S)", "\n    ", lines)


#: The attributes of every record, which `extra` must not replace.
_RESERVED_ATTRIBUTES = frozenset({"message", "asctime", *vars(logging.makeLogRecord({}))})
#: The beginning of an attribute whose own name is taken.
_PREFIX = "retryrmq_"
#: The fields of the core's lines that are numbers. All others are text, even if a queue is called `7`.
_NUMBER_FIELDS = frozenset({"attempt", "channels", "count", "crashes", "dropped", "tasks", "tries"})


def fields(given: Iterable[tuple[str, object]]) -> dict[str, object]:
    """The attributes of a record, for `extra`. Without those that have no value."""
    return {_attribute(name): _value(name, value) for name, value in given if value is not None}


def _attribute(name: str) -> str:
    return _PREFIX + name if name in _RESERVED_ATTRIBUTES else name


def _value(name: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    # A formatter may write it as it is.
    return int(value) if name in _NUMBER_FIELDS and value.isdecimal() else escaped(value)


def about(message: Message, **more: object) -> dict[str, object]:
    """The attributes of a record about a message."""
    own = {"queue": message.queue, "message_id": message.message_id, "attempt": message.attempt}
    return fields({**own, **more}.items())


def about_queue(queue: str, **more: object) -> dict[str, object]:
    """The attributes of a record about a consumer."""
    return fields({"queue": queue, **more}.items())


class _Escaping(logging.Filter):
    """Changes our records before any handler sees them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(escaped(arg) if isinstance(arg, str) else arg for arg in record.args)
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            try:
                record.exc_text = _trace(record.exc_info)
            except Exception:  # a user's error may raise when it is shown
                record.exc_text = f"{record.exc_info[0].__name__}: its trace cannot be shown"
        return True


_ESCAPING = _Escaping()


def logger(name: str) -> logging.Logger:
    """The logger of this name, with escaped records."""
    found = logging.getLogger(name)
    found.addFilter(_ESCAPING)  # it is added only once
    return found


def log(
    logger: logging.Logger,
    level: int,
    text: str,
    *args: object,
    exc_info: Any = None,
    fields: Mapping[str, object] | None = None,
) -> None:
    """Logs a line with these attributes. Never raises an ``Exception``, whatever factories, filters and handlers do."""
    extra = dict(fields or ())
    with contextlib.suppress(Exception):
        while True:
            try:
                logger.log(level, text, *args, exc_info=exc_info, extra=extra, stacklevel=2)
                return
            except KeyError as error:
                taken = _conflicting_attribute(error, extra)
                if taken is None:
                    raise
            value = extra.pop(taken)
            if not taken.startswith(_PREFIX):
                extra[_PREFIX + taken] = value


def _conflicting_attribute(error: KeyError, extra: Mapping[str, object]) -> str | None:
    """The attribute that an application's factory of records has set, too: `logging` refuses to replace it."""
    said = str(error.args[0]) if error.args else ""
    if not said.startswith("Attempt to overwrite"):
        return None
    return next((name for name in extra if repr(name) in said), None)


#: The loggers whose levels decide. The core has lines for other loggers below the first one, but few.
_LEVEL_LOGGERS = ("retryrmq", "retryrmq.attempt")


def follow_levels() -> None:
    """Tells the core which of its lines are wanted. It logs each failed attempt, and a line that is dropped here costs as much as any other.

    Never raises: loggers may be of a user's class.
    """
    with contextlib.suppress(Exception):
        levels = []
        for name in _LEVEL_LOGGERS:
            # A logger that is made before the application configures its logging would be disabled by that.
            found = logging.root.manager.loggerDict.get(name)
            if isinstance(found, logging.Logger):
                levels.append(found.getEffectiveLevel())
        least = max(min(levels), logging.root.manager.disable + 1)
        _native.want_lines(min(least, logging.CRITICAL))
