"""Logins from a function that is called for every connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ._duration import Duration, seconds
from ._signatures import checked_callable
from .errors import InvalidTypeError
from .options import checked_text


@dataclass(frozen=True)
class Login:
    """A user and a password, for a ``credentials`` function to return. Its ``repr`` does not show the password."""

    #: The user. May be empty with an OAuth 2 token, because the token names the user.
    user: str
    #: The password, or an OAuth 2 token.
    password: str = field(repr=False)
    #: How long from now the broker accepts this password. Before that time ends, the function is called again and the open connections
    #: are renewed. If the token is a JWT, its lifetime is read from ``exp``. Otherwise ``None`` means that it does not expire.
    expires_in: Duration | None = None

    def __post_init__(self) -> None:
        checked_text("user", self.user)
        checked_text("password", self.password)
        if self.expires_in is not None:
            seconds(self.expires_in, "expires_in")


#: A function that returns the login. It is called without arguments, for every connection and again before a password expires. A ``def``
#: runs on a thread, an ``async def`` on the event loop.
Credentials: TypeAlias = Callable[[], Login | tuple[str, str] | Awaitable[Login | tuple[str, str]]]


def checked_credentials(function: object) -> None:
    """Raises if the function cannot be called."""
    if isinstance(function, Login | tuple):
        raise InvalidTypeError(
            f"`credentials` must be a function that returns a retryrmq.Login, not a {type(function).__name__} itself; "
            "put a fixed login into the URL"
        )
    checked_callable("`credentials`", function, "without arguments")


def checked_login(result: Any) -> Login:
    """The login that a function returned. The error message does not quote the value, which may be a password."""
    if isinstance(result, Login):
        return result
    if isinstance(result, tuple) and len(result) == 2:
        return Login(*result)
    what = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
    raise InvalidTypeError(f"it must return a retryrmq.Login, or a tuple of user and password, not {what}")
