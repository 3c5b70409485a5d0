"""Exceptions: one base class, a class per kind, and a stable ``code`` that is the same in every language."""

from __future__ import annotations

from typing import ClassVar


class RetryRmqError(Exception):
    """The base of every exception of this package. None of them means that a message was lost."""

    #: The kind, the same in every language.
    code: ClassVar[str] = "error"
    #: What stands behind it, for a log; often empty.
    detail: str = ""


class InvalidUrlError(RetryRmqError, ValueError):
    """The broker's address cannot be used."""

    code = "invalid_url"


class InvalidOptionError(RetryRmqError, ValueError):
    """An option has a value that cannot work; nothing was subscribed or published."""

    code = "invalid_option"


class InvalidTypeError(RetryRmqError, TypeError):
    """An option has a value of a type that cannot work; nothing was subscribed or published."""

    code = "invalid_option"


class InvalidPolicyError(RetryRmqError, ValueError):
    """A retry policy or rule cannot be read or cannot work."""

    code = "invalid_policy"


class UnreachableError(RetryRmqError, ConnectionError):
    """Nothing answers at the address, or what answers does not speak AMQP 0-9-1."""

    code = "unreachable"


class AuthenticationFailedError(RetryRmqError):
    """The broker refuses the user or the password; or there is none, because a file or the ``credentials`` function failed."""

    code = "authentication_failed"


class TlsFailedError(RetryRmqError):
    """The TLS handshake failed, or a certificate file holds no certificate."""

    code = "tls_failed"


class VhostNotFoundError(RetryRmqError):
    """The virtual host does not exist."""

    code = "vhost_not_found"


class QueueNotFoundError(RetryRmqError):
    """The queue does not exist and may not be declared."""

    code = "queue_not_found"


class MismatchError(RetryRmqError):
    """A queue or exchange exists with other arguments."""

    code = "mismatch"


class AccessRefusedError(RetryRmqError):
    """The user lacks a permission; the text names the pattern that is missing."""

    code = "access_refused"


class StrategyRefusedError(RetryRmqError):
    """The broker or the queue cannot serve the chosen strategy safely; the text names one that can."""

    code = "strategy_refused"


class UnroutableError(RetryRmqError):
    """No queue takes a message with this exchange and routing key."""

    code = "unroutable"


class NotConfirmedError(RetryRmqError):
    """The broker did not confirm a message: publish it again after a pause."""

    code = "not_confirmed"


class TooLargeError(RetryRmqError, ValueError):
    """The message does not fit: a name above 255 bytes, or headers above one frame."""

    code = "too_large"


class BrokerTimeoutError(RetryRmqError, TimeoutError):
    """The broker did not answer in time."""

    code = "timeout"


class ConnectionLostError(RetryRmqError, ConnectionError):
    """The connection was lost; it is re-made in the background."""

    code = "connection_lost"


class ClosedError(RetryRmqError):
    """The client or consumer was closed."""

    code = "closed"


class ForkedError(RetryRmqError, RuntimeError):
    """The client was connected before this process was forked: connect after the fork, in each process."""

    code = "forked"


class BrokerError(RetryRmqError):
    """Any other refusal by the broker; the text quotes it."""

    code = "broker_error"


_KINDS: tuple[type[RetryRmqError], ...] = (
    InvalidUrlError,
    InvalidOptionError,
    InvalidPolicyError,
    UnreachableError,
    AuthenticationFailedError,
    TlsFailedError,
    VhostNotFoundError,
    QueueNotFoundError,
    MismatchError,
    AccessRefusedError,
    StrategyRefusedError,
    UnroutableError,
    NotConfirmedError,
    TooLargeError,
    BrokerTimeoutError,
    ConnectionLostError,
    ClosedError,
    ForkedError,
    BrokerError,
)
_CLASSES: dict[str, type[RetryRmqError]] = {kind.code: kind for kind in _KINDS}
_CLASSES["invalid_type"] = InvalidTypeError


def _from_code(code: str, message: str, detail: str) -> RetryRmqError:
    """The exception for an error of the native half."""
    error = _CLASSES.get(code, RetryRmqError)(message)
    error.detail = detail
    return error
