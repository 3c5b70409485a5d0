"""Retry messages on RabbitMQ, safely, with one line: ``dlx=True``.

A handler that returns acknowledges its message; one that raises sends it to wait in the broker, from where it comes back at
the tail of its own queue, counted, until it succeeds or is parked with a record that a person can read::

    import retryrmq

    app = retryrmq.App("amqp://guest:guest@localhost")


    @app.consume("orders", dlx=True)
    async def handle(msg):
        order = msg.json()


    app.run()
"""

from ._duration import Duration
from ._native import VERSION as __version__
from ._native import Message
from .app import App
from .client import BlockingClient, Client, PublishOptions, connect, connect_blocking
from .consumer import BlockingConsumer, Consumer
from .errors import (
    AccessRefusedError,
    AuthenticationFailedError,
    BrokerError,
    BrokerTimeoutError,
    ClosedError,
    ConnectionLostError,
    ForkedError,
    InvalidOptionError,
    InvalidPolicyError,
    InvalidTypeError,
    InvalidUrlError,
    MismatchError,
    NotConfirmedError,
    QueueNotFoundError,
    RetryRmqError,
    StrategyRefusedError,
    TlsFailedError,
    TooLargeError,
    UnreachableError,
    UnroutableError,
    VhostNotFoundError,
)
from .events import (
    AlreadyHandled,
    Deferred,
    Detoured,
    Disconnected,
    Event,
    HandedOver,
    LoginRefused,
    Parked,
    Paused,
    PublishFailed,
    Reconnected,
    Rejected,
    Replayed,
    Requeued,
    Resumed,
    Retried,
)
from .login import Credentials, Login
from .options import ConsumerOptions, Handler, Pause, Strategy, WorkQueue
from .outcome import Defer, Park, RetryAfter
from .parking import BlockingParkedMessages, ParkedMessage, ParkedMessages
from .policy import Policy, Rule, exponential, fixed, linear

# Said twice, for type checkers: it is exported, but not in __all__, where it would hide the builtin.
from .policy import list as list
from .record import HistoryEntry, Stats

__all__ = [
    "AccessRefusedError",
    "AlreadyHandled",
    "App",
    "AuthenticationFailedError",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingParkedMessages",
    "BrokerError",
    "BrokerTimeoutError",
    "Client",
    "ClosedError",
    "ConnectionLostError",
    "Consumer",
    "ConsumerOptions",
    "Credentials",
    "Defer",
    "Deferred",
    "Detoured",
    "Disconnected",
    "Duration",
    "Event",
    "ForkedError",
    "HandedOver",
    "Handler",
    "HistoryEntry",
    "InvalidOptionError",
    "InvalidPolicyError",
    "InvalidTypeError",
    "InvalidUrlError",
    "Login",
    "LoginRefused",
    "Message",
    "MismatchError",
    "NotConfirmedError",
    "Park",
    "Parked",
    "ParkedMessage",
    "ParkedMessages",
    "Pause",
    "Paused",
    "Policy",
    "PublishFailed",
    "PublishOptions",
    "QueueNotFoundError",
    "Reconnected",
    "Rejected",
    "Replayed",
    "Requeued",
    "Resumed",
    "Retried",
    "RetryAfter",
    "RetryRmqError",
    "Rule",
    "Stats",
    "Strategy",
    "StrategyRefusedError",
    "TlsFailedError",
    "TooLargeError",
    "UnreachableError",
    "UnroutableError",
    "VhostNotFoundError",
    "WorkQueue",
    "__version__",
    "connect",
    "connect_blocking",
    "exponential",
    "fixed",
    "linear",
]
