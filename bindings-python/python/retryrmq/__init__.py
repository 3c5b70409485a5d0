"""Retry messages on RabbitMQ, safely, with one line: ``dlx=True``.

If a handler returns, its message is acknowledged. If it raises, the message waits in the broker and comes back at the tail of its queue. Each
retry is counted. In the end the message is handled, or parked with a record that a person can read::

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
from .credentials import Credentials, Login
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
    ConsumingStopped,
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
    UnreadableMoved,
)
from .middleware import (
    BatchCallNext,
    BatchMiddleware,
    CallNext,
    DualMiddleware,
    Middleware,
    Publishing,
    PublishMiddleware,
    PublishNext,
)
from .options import BodyHandler, ConsumerOptions, Handler, Pause, Strategy, WorkQueue
from .outcome import Defer, Park, RetryAfter, Undecodable
from .parking import BlockingParkedMessages, ParkedMessage, ParkedMessages
from .policy import Policy, Rule, exponential, fixed, linear

# `as list` exports it for type checkers. It is not in __all__, because there it would hide the builtin.
from .policy import list as list
from .record import HistoryEntry, Stats

__all__ = [
    "AccessRefusedError",
    "AlreadyHandled",
    "App",
    "AuthenticationFailedError",
    "BatchCallNext",
    "BatchMiddleware",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingParkedMessages",
    "BodyHandler",
    "BrokerError",
    "BrokerTimeoutError",
    "CallNext",
    "Client",
    "ClosedError",
    "ConnectionLostError",
    "Consumer",
    "ConsumerOptions",
    "ConsumingStopped",
    "Credentials",
    "Defer",
    "Deferred",
    "Detoured",
    "Disconnected",
    "DualMiddleware",
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
    "Middleware",
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
    "PublishMiddleware",
    "PublishNext",
    "PublishOptions",
    "Publishing",
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
    "Undecodable",
    "UnreachableError",
    "UnreadableMoved",
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
