"""Logins from a function that is called at every connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ._duration import Duration, seconds
from .errors import InvalidTypeError
from .options import checked_callable, checked_text


@dataclass(frozen=True)
class Login:
    """A user and a password, as a ``credentials`` function returns them. The password is not in its ``repr``."""

    #: The user; may be empty with an OAuth 2 token, which says itself who it is for.
    user: str
    #: The password, or an OAuth 2 token.
    password: str = field(repr=False)
    #: How long from now the broker takes this password: the function is asked again before that, and the open connections are
    #: renewed. Of a token that is a JWT it is read from its ``exp``; otherwise there is no end unless it is said here.
    expires_in: Duration | None = None

    def __post_init__(self) -> None:
        checked_text("user", self.user)
        checked_text("password", self.password)
        if self.expires_in is not None:
            seconds(self.expires_in, "expires_in")


#: Called without arguments, at every connection and again before a password ends. A ``def`` runs on a thread, an ``async def`` on
#: the event loop.
Credentials: TypeAlias = Callable[[], Login | tuple[str, str] | Awaitable[Login | tuple[str, str]]]


def checked_credentials(function: object) -> None:
    """Raises what is wrong with it before it is asked anything."""
    if isinstance(function, Login | tuple):
        raise InvalidTypeError(
            f"`credentials` must be a function that returns a retryrmq.Login, not a {type(function).__name__} itself; a login "
            "that does not change belongs into the URL"
        )
    checked_callable("`credentials`", function, "without arguments")


def login_of(result: Any) -> Login:
    """What a function returned. Raises without a word of it, which may be a password."""
    if isinstance(result, Login):
        return result
    if isinstance(result, tuple) and len(result) == 2:
        return Login(*result)
    what = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
    raise InvalidTypeError(f"it must return a retryrmq.Login, or a tuple of user and password, not {what}")
