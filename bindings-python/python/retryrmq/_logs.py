"""Our loggers. What publishers choose (ids, bodies quoted by errors) cannot end a line, or steer a terminal."""

from __future__ import annotations

import logging
import re
import traceback
from typing import Any


def escaped(text: str) -> str:
    """With escapes for what is not printable: line ends, control characters, marks that change the direction of a text."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _trace(info: Any) -> str:
    """A trace, whose lines are its own: those of an error's text are indented."""
    return "".join(map(_traced, traceback.format_exception(*info))).rstrip("\n")


def _traced(part: str) -> str:
    lines = "\n".join(map(escaped, part.split("\n")))
    # What is between two errors of a chain begins with an empty line.
    return lines if lines.startswith("\n") else re.sub(r"\n(?=\S)", "\n    ", lines)


class _Escaping(logging.Filter):
    """Changes our records before any handler sees them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(escaped(arg) if isinstance(arg, str) else arg for arg in record.args)
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            try:
                record.exc_text = _trace(record.exc_info)
            except Exception:  # people's errors may do anything when they are shown
                record.exc_text = f"{record.exc_info[0].__name__}: its trace cannot be shown"
        return True


_ESCAPING = _Escaping()


def logger(name: str) -> logging.Logger:
    """The logger of this name, of whose records nothing breaks out."""
    found = logging.getLogger(name)
    found.addFilter(_ESCAPING)  # once, however often it is added
    return found
