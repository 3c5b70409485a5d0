"""A helpful error for ``with`` instead of ``async with``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import InvalidTypeError


class AsyncOnly:
    """The base of classes for ``async with``. Python's own error would only say that a protocol is not supported."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers find the mistake by themselves, as long as there is no such method

        def __enter__(self) -> None:
            raise InvalidTypeError(
                f"a {type(self).__name__} is for event loops: use `async with`; for threads there is retryrmq.connect_blocking"
            )

        def __exit__(self, *_: object) -> None: ...
