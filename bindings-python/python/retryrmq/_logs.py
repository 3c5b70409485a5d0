"""Our loggers. Texts that publishers choose (ids, bodies quoted by errors) cannot end a line, or control a terminal."""

from __future__ import annotations

import contextlib
import logging
import re
import traceback
from typing import Any

from . import _native


def escaped(text: str) -> str:
    """The text with escapes for everything that is not printable: line ends, control characters, marks of text direction."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _trace(info: Any) -> str:
    """A traceback. The lines of an error's text are indented, so that they do not look like lines of the log."""
    return "".join(map(_traced, traceback.format_exception(*info))).rstrip("\n")


def _traced(part: str) -> str:
    lines = "\n".join(map(escaped, part.split("\n")))
    # The text between two errors of a chain begins with an empty line.
    return lines if lines.startswith("\n") else re.sub(r"\n(?=\S)", "\n    ", lines)


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


#: The loggers whose levels decide. The core has lines for other loggers below the first one, but few.
_DECISIVE = ("retryrmq", "retryrmq.attempt")


def follow_levels() -> None:
    """Tells the core which of its lines are wanted. It logs each failed attempt, and a line that is dropped here costs as much as any other.

    Never raises: loggers may be of a user's class.
    """
    with contextlib.suppress(Exception):
        levels = []
        for name in _DECISIVE:
            # A logger that is made before the application configures its logging would be disabled by that.
            found = logging.root.manager.loggerDict.get(name)
            if isinstance(found, logging.Logger):
                levels.append(found.getEffectiveLevel())
        least = max(min(levels), logging.root.manager.disable + 1)
        _native.want_lines(min(least, logging.CRITICAL))
