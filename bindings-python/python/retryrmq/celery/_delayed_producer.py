"""Tasks with a `countdown` or an `eta`, and retries: published to where they wait."""

from __future__ import annotations

import contextvars
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from importlib import import_module
from typing import Any

from ..errors import InvalidOptionError, RetryRmqError
from ..outcome import classify
from ._copy_store import MAX_DELAY, PERMANENT_ERRORS, Failure, TaskMessage, is_temporary, publish_arguments

_times: Any = import_module("celery.utils.time")
_OperationalError: Any = import_module("kombu.exceptions").OperationalError

#: How long a publisher tries to store a message, in seconds: somebody waits for it.
_PUBLISH_TIMEOUT = 10.0
#: How long a task tries to store its retry, in seconds.
_TASK_RETRY_TIMEOUT = 60.0
#: A retry without a delay.
_MIN_DELAY = 0.001


@dataclass(frozen=True)
class RetryingAttempt:
    """The attempt that asks for a retry, and why it failed."""

    request: Any
    failure: Failure
    #: The main process of a worker waits for the copy.
    timeout: float = 3.0


#: Set where the attempt is not that of the current task: its process was lost, and the worker asks for the retry.
retrying_attempt: contextvars.ContextVar[RetryingAttempt | None] = contextvars.ContextVar(
    "retrying_attempt", default=None
)


def due_at(app: Any, eta: Any) -> datetime:
    """An ETA as the worker reads it."""
    due: datetime = _times.maybe_make_aware(_times.maybe_iso8601(eta), app.timezone)
    return due.astimezone(timezone.utc)


def check_protocol(app: Any) -> None:
    """Refuses messages that have no headers."""
    if app.conf.task_protocol != 2:
        raise InvalidOptionError(
            f"`task_protocol` is {app.conf.task_protocol}; retryrmq.celery needs 2, Celery's default, which keeps a task's data in headers"
        )


def wrap_send_task(app: Any, send: Callable[..., Any]) -> Callable[..., Any]:
    """``app.send_task``, through which every task is published."""

    @functools.wraps(send)
    def send_task(
        name: str,
        args: Any = None,
        kwargs: Any = None,
        countdown: Any = None,
        eta: Any = None,
        task_id: Any = None,
        producer: Any = None,
        connection: Any = None,
        **options: Any,
    ) -> Any:
        check_protocol(app)
        now = datetime.now(timezone.utc)
        due = now + timedelta(seconds=float(countdown)) if countdown else due_at(app, eta) if eta else now
        attempt = _retried_attempt(app, task_id, options)
        if due <= now and attempt is None:
            given = {"producer": producer, "connection": connection, **options}
            return send(name, args, kwargs, countdown, eta, task_id, **given)
        if connection is not None:
            producer = app.amqp.Producer(connection, auto_declare=False)
        with app.producer_or_acquire(producer or options.pop("publisher", None)) as real:
            waits = _DelayedProducer(app, task_id, real, due, attempt)
            return send(name, args, kwargs, task_id=task_id, producer=waits, **options)

    return send_task


def _retried_attempt(app: Any, task_id: Any, options: dict[str, Any]) -> RetryingAttempt | None:
    """The attempt of which this is the retry, if it goes back to its own queue."""
    found = retrying_attempt.get()
    if found is None:
        task = app.current_worker_task
        if task is None or task.request.id != task_id or options.get("retries", 0) != task.request.retries + 1:
            return None
        error = sys.exc_info()[1]
        _, text, kind, _, _, _ = classify(error) if error else ("", "the task asked for a retry", "", [], None, None)
        found = RetryingAttempt(task.request, (text, kind, None), _TASK_RETRY_TIMEOUT)
    elif found.request.id != task_id:
        return None
    own = found.request.delivery_info or {}
    queue = options.get("queue")
    is_home = bool(own.get("queue")) and getattr(queue, "name", queue) == own["queue"]
    stays = all(options.get(name) in (None, own.get(name)) for name in ("exchange", "routing_key"))
    return found if is_home and stays else None


class _DelayedProducer:
    """Stands in for Celery's producer while it publishes one task."""

    def __init__(self, app: Any, task_id: Any, producer: Any, due: datetime, attempt: RetryingAttempt | None) -> None:
        self._app, self._task_id, self._producer, self._due, self._attempt = app, task_id, producer, due, attempt
        self._is_done = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        if self._is_done:  # an event of Celery's, which comes after
            return self._producer.publish(body, **options)
        exchange = getattr(options.get("exchange"), "name", options.get("exchange"))
        headers = options["headers"]
        delay = max(_MIN_DELAY, (self._due - datetime.now(timezone.utc)).total_seconds())
        if self._attempt is None and (exchange or self._is_temporary(options.get("declare"))):
            # Which queues take it is known only when it is published. The workers of each let it wait there.
            headers["eta"] = self._due.isoformat()
            done = self._producer.publish(body, **options)
        else:
            if delay > MAX_DELAY:  # a worker sends it to wait for the rest
                headers["eta"] = self._due.isoformat()
            done = None
            try:
                self._store(body, min(delay, MAX_DELAY), **options)
            except PERMANENT_ERRORS:
                raise
            except RetryRmqError as error:
                raise _OperationalError(str(error)) from error
        self._is_done = True
        return done

    def _is_temporary(self, declared: Any) -> bool:
        """Whether it goes to a queue that goes with its worker, which then keeps it until it is due."""
        task = self._app.current_worker_task
        own = (task.request.delivery_info or {}) if task is not None and task.request.id == self._task_id else {}
        return own.get("queue", "") is None or any(is_temporary(queue) for queue in declared or ())

    def _store(
        self,
        body: Any,
        delay: float,
        *,
        headers: dict[str, Any],
        routing_key: str,
        serializer: Any = None,
        compression: Any = None,
        declare: Any = None,
        retry: bool = False,
        retry_policy: dict[str, Any] | None = None,
        **properties: Any,
    ) -> None:
        producer, copies = self._producer, self._app.retryrmq.copies
        data, kind, encoding = producer._prepare(body, serializer, None, None, compression, headers)
        properties.update(content_type=kind, content_encoding=encoding)
        properties.pop("expiration", None)  # it would end the wait; the worker reads the header `expires`
        if self._attempt is None:
            for entity in declare or ():
                producer.maybe_declare(entity, retry, **(retry_policy or {}))
            copies.publish(publish_arguments(data, properties, headers, routing_key), delay, _PUBLISH_TIMEOUT)
            return
        request, failure = self._attempt.request, self._attempt.failure
        own = request.delivery_info
        headers["x-retry-count"] = headers["retries"] - 1
        message = TaskMessage(data, properties, headers, own.get("exchange") or "", own.get("routing_key") or "")
        copies.store(own["queue"], message.retried(delay, failure), self._attempt.timeout)
