"""Exceptions: one base class, a class per kind, and a stable ``code`` that is the same in every language."""

from __future__ import annotations

from typing import ClassVar


class RetryRmqError(Exception):
    """The base of every exception of this package.

    None of them means that a delivered message was lost: what was not acknowledged stays in its queue.
    """

    #: The code of the error, the same in every language.
    code: ClassVar[str] = "error"
    #: Its cause, for a log; often empty.
    detail: str = ""


class InvalidUrlError(RetryRmqError, ValueError):
    """The broker's address cannot be used: unknown scheme, missing host, port out of range, or hosts of different clusters."""

    code = "invalid_url"


class InvalidOptionError(RetryRmqError, ValueError):
    """An option has a value that cannot work. Nothing was subscribed or published."""

    code = "invalid_option"


class InvalidTypeError(RetryRmqError, TypeError):
    """An option has a value of a wrong type. Nothing was subscribed or published."""

    code = "invalid_option"


class InvalidPolicyError(RetryRmqError, ValueError):
    """A retry policy or a rule cannot be parsed, or cannot work."""

    code = "invalid_policy"


class UnreachableError(RetryRmqError, ConnectionError):
    """No usable connection: nothing answers, it is not AMQP 0-9-1, the broker is still starting, or its limit of connections or channels is
    reached."""

    code = "unreachable"


class AuthenticationFailedError(RetryRmqError):
    """The broker refused the login (AMQP 403 while connecting), or the password file or the ``credentials`` function failed."""

    code = "authentication_failed"


class TlsFailedError(RetryRmqError):
    """The TLS handshake failed, or a certificate file contains no certificate."""

    code = "tls_failed"


class VhostNotFoundError(RetryRmqError):
    """The virtual host does not exist (AMQP 530 while connecting)."""

    code = "vhost_not_found"


class QueueNotFoundError(RetryRmqError):
    """A queue, or an exchange that the strategy needs, does not exist, and this call does not create it (AMQP 404)."""

    code = "queue_not_found"


class MismatchError(RetryRmqError):
    """A queue or exchange exists with other arguments (AMQP 406), or is a stream or an auto-delete queue and cannot be used."""

    code = "mismatch"


class AccessRefusedError(RetryRmqError):
    """The user lacks a permission (AMQP 403; the error message names the pattern), or another connection uses the queue exclusively
    (AMQP 403 or 405)."""

    code = "access_refused"


class StrategyRefusedError(RetryRmqError):
    """This broker or this queue cannot serve the chosen strategy safely. The error message names one that can."""

    code = "strategy_refused"


class UnroutableError(RetryRmqError):
    """No queue takes a message with this exchange and routing key (AMQP ``basic.return``), or there is no such exchange
    (AMQP 404). It was not stored."""

    code = "unroutable"


class NotConfirmedError(RetryRmqError):
    """The broker rejected a publish (AMQP ``basic.nack``). Publish it again after a pause."""

    code = "not_confirmed"


class TooLargeError(RetryRmqError, ValueError):
    """The message does not fit: a name longer than 255 bytes, headers larger than one frame, or a body larger than the broker allows."""

    code = "too_large"


class BrokerTimeoutError(RetryRmqError, TimeoutError):
    """The broker did not answer in time, or the nodes of the queue are down."""

    code = "timeout"


class ConnectionLostError(RetryRmqError, ConnectionError):
    """The connection was lost. The client reconnects in the background."""

    code = "connection_lost"


class ClosedError(RetryRmqError):
    """The client or the consumer was closed, or a bug in retryrmq ended the consumer."""

    code = "closed"


class ForkedError(RetryRmqError, RuntimeError):
    """The client was connected before this process was forked. Connect after the fork, in each process."""

    code = "forked"


class BrokerError(RetryRmqError):
    """Any other refusal by the broker. The error message quotes it."""

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
