"""What a user calls, and its options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypedDict

from .. import _native
from .._duration import Duration, seconds
from .._typing import Unpack
from ..client import QueueType
from ..errors import InvalidOptionError, InvalidTypeError
from ..options import checked_flag, checked_text, no_option
from ._copy_store import CopyStore, broker_urls
from ._delayed_producer import check_protocol, wrap_send_task

_celery: Any = import_module("celery")
_signals: Any = import_module("celery.signals")
_symbol_by_name: Any = import_module("celery.utils.imports").symbol_by_name
_OLDEST = (5, 7)
#: Celery's consumers by name: its own, and ours.
_CELERYS, _OURS = "celery.worker.consumer:Consumer", "retryrmq.celery:Consumer"


class Options(TypedDict, total=False):
    """What :func:`setup` takes besides the application and the address."""

    #: Whether tasks that finally fail are parked. On by default. If off, they end as Celery ends them.
    park: bool
    #: A task is parked as ``delivery-limit`` after this many crashes of its worker, 1 to 1000. 10 by default.
    crash_limit: int
    #: How long a worker that ends waits for copies that are not stored yet. 25 seconds by default.
    drain_timeout: Duration
    #: The type of the waiting and parking queues: ``quorum`` (the default) or ``classic``.
    queue_type: QueueType | None
    #: The version of the application, for the history of failures.
    app_version: str


@dataclass
class Integration:
    """What the parts have in common. It is an attribute of the application."""

    copies: CopyStore
    park: bool
    crash_limit: int
    drain_timeout: float


def setup(app: Any, url: str | Sequence[str] | None = None, **options: Unpack[Options]) -> None:
    """Lets the tasks of ``app`` wait in the broker and parks those that finally fail.

    Call it wherever the application is made, so that it runs in all processes that publish or work. ``url`` is the address of the broker
    (see :func:`retryrmq.connect`); by default it is made of the ``broker_url`` of the application and its other settings. Nothing is sent to
    the broker yet, and the settings may still change. A second call replaces the address and the options of the first.

    Raises :class:`InvalidOptionError` or :class:`InvalidTypeError` for an option that cannot work, and ``ImportError`` for
    a Celery that is too old.
    """
    if _celery.VERSION[:2] < _OLDEST:
        raise ImportError(
            f"retryrmq.celery needs Celery 5.7 or newer, and this is {_celery.__version__}: pip install --upgrade 'retryrmq[celery]'"
        )
    known = sorted(Options.__optional_keys__)
    for name in options:
        if name not in known:
            raise no_option(name, known)
    crash_limit = options.get("crash_limit", 10)
    if isinstance(crash_limit, bool) or not isinstance(crash_limit, int):
        raise InvalidTypeError(f"`crash_limit` must be an int, not {type(crash_limit).__name__}")
    if not 1 <= crash_limit <= 1000:
        raise InvalidOptionError(f"`crash_limit` must be between 1 and 1000, not {crash_limit}")
    queue_type = options.get("queue_type")
    if queue_type is not None:
        _native.check_queue_type(checked_text("queue_type", queue_type))
    app_version = checked_text("app_version", options.get("app_version", ""))
    park = checked_flag("park", options.get("park", True))
    drain_timeout = seconds(options.get("drain_timeout", "25s"), "drain_timeout")
    if url is not None:
        for one in [url] if isinstance(url, str) else url:
            _native.check_url(one)

    if app.configured:
        check_protocol(app)

    copies = CopyStore(lambda: broker_urls(app) if url is None else url, app_version, queue_type)
    is_new = not hasattr(app, "retryrmq")
    if not is_new:
        app.retryrmq.copies.close()
    app.retryrmq = Integration(copies, park, crash_limit, drain_timeout)
    if not is_new:
        return
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: app.retryrmq.copies.forget())
    app.send_task = wrap_send_task(app, app.send_task)
    close = app.close

    def closes() -> None:
        close()
        app.retryrmq.copies.close()

    app.close = closes

    def configured(source: Any = None, **_: Any) -> None:
        if source.worker_consumer == _CELERYS:
            source.worker_consumer = _OURS

    def begins(instance: Any, conf: Any, **_: Any) -> None:
        if instance.app is not app:
            return
        try:
            check_protocol(app)
        except InvalidOptionError as error:
            raise SystemExit(str(error)) from None
        if not issubclass(_symbol_by_name(conf.worker_consumer), _symbol_by_name(_OURS)):
            raise SystemExit(
                f"`worker_consumer` is {conf.worker_consumer}; derive it from {_OURS} to use retryrmq.celery"
            )

    # Celery may read its configuration later, and again.
    app.on_after_configure.connect(configured, weak=False)
    if app.configured:
        configured(app.conf)
    _signals.celeryd_init.connect(begins, weak=False)
