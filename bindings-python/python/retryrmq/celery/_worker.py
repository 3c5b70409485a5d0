"""The worker's side: what a failed task becomes, and what is not run when it arrives.

The original is acknowledged when its copy is stored (see :mod:`._copy_workers`). The main process of a worker does not wait for that.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from importlib import import_module
from typing import Any

from .. import _logs
from ..outcome import classify
from ._copy_store import MAX_DELAY, Decide, Failure, is_temporary, logger, received
from ._copy_workers import PendingCopy, copy_workers, is_connected
from ._delayed_producer import RetryingAttempt, due_at, retrying_attempt

_errors: Any = import_module("celery.exceptions")
_requests: Any = import_module("celery.worker.request")
_consumers: Any = import_module("celery.worker.consumer")
_symbol_by_name: Any = import_module("celery.utils.imports").symbol_by_name
_state: Any = import_module("celery.worker.state")
_signals: Any = import_module("celery.signals")
_Nack: Any = import_module("amqp.spec").Basic.Nack
_ExceptionInfo: Any = import_module("billiard.einfo").ExceptionInfo
_ExceptionWithTraceback: Any = import_module("billiard.einfo").ExceptionWithTraceback

#: Deliveries that a quorum queue counted, from which on a copy starts its count again: past its delivery limit the queue drops a message.
_MIN_DELIVERIES = 3
#: An ETA that is nearer is left to Celery, in seconds.
_MIN_WAIT = 0.1
#: The most crashes that are counted.
_MAX_CRASHES = 1000


class _SettledElsewhere:
    """A message that Celery drops after it has said so. It is settled when its copy is stored."""

    def __init__(self, message: Any) -> None:
        self._message = message
        self.ack = self.reject = self.ack_log_error = self.reject_log_error = lambda *_, **__: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)


def _original_error(error: Any) -> Any:
    return error.exc if isinstance(error, _ExceptionWithTraceback) else error


def _failure_of(error: BaseException, stack: str | None = None) -> Failure:
    _, text, kind, _, own, _ = classify(error)
    # What cannot be pickled comes as something else that knows its name.
    return text, getattr(error, "exc_cls_name", None) or kind or type(error).__name__, stack or own


class Request(_requests.Request):  # type: ignore[misc]
    """A task in the worker's main process. Each task's own class of requests is combined with this one."""

    #: Why it finally fails, while Celery decides what becomes of the message.
    _parking: tuple[str, Failure] | None = None
    _is_parked = False
    acknowledged: bool

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        # The process that runs it has no other way to know: a retry comes back to this queue only, or to none that is temporary.
        self._delivery_info["queue"] = message.delivery_info.get("queue")

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        error = _original_error(exc_info.exception)
        self._parking = self._parking_of(error, exc_info)
        try:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        finally:
            if self._parking is not None and self.acknowledged:  # before it ran
                self._park()
            if self._is_parked and self._parking is not None and self._parking[0] == "delivery-limit":
                # Celery takes it for requeued.
                self.fail(_errors.WorkerLostError(self._parking[1][0]))

    def fail(self, error: Exception) -> None:
        """What Celery does for a task that failed: its result, its chord and the signal."""
        try:
            raise error
        except type(error):
            info = _ExceptionInfo()
        self.task.backend.mark_as_failure(self.id, error, request=self._context, store_result=self.store_errors)
        about = {"task_id": self.id, "exception": error, "args": self.args, "kwargs": self.kwargs}
        self.task.request_stack.push(self._context)
        try:
            _signals.task_failure.send(sender=self.task, traceback=info.traceback, einfo=info, **about)
        finally:
            self.task.request_stack.pop()
        self.send_event("task-failed", exception=repr(error), traceback=info.traceback)

    @property
    def _may_park(self) -> bool:
        return bool(self._app.retryrmq.park and self._message.delivery_info.get("queue"))

    def requeue_unstarted(self) -> None:
        """Requeues it when its worker ends, which is no crash."""
        if (
            self.acknowledged
            or self._parking is not None
            or self._message.acknowledged
            or not is_connected(self._message)
        ):
            return
        self.acknowledged = True
        self._message.reject_log_error(logger, self._connection_errors, True)

    def _parking_of(self, error: Any, exc_info: Any) -> tuple[str, Failure] | None:
        """The reason for parking and the failure; ``None`` if the task does not fail for good."""
        if (
            self._already_revoked
            or self._already_cancelled
            or isinstance(error, (_errors.Terminated, _errors.Retry, MemoryError))
        ):
            return None
        if isinstance(error, _errors.Reject):
            reason: Any = error.reason if isinstance(error.reason, BaseException) else error
            text = None if error.reason is None or reason is not error else str(error.reason)
            failure = _failure_of(reason, str(exc_info.traceback))
            return None if error.requeue else ("requested", (text or failure[0], failure[1], failure[2]))
        if isinstance(error, _errors.Ignore):
            return None
        if isinstance(error, SystemExit | KeyboardInterrupt):
            lost = _errors.WorkerLostError(f"the process of the task exited: {error!r}")
            return "fatal", _failure_of(lost, str(exc_info.traceback))
        failure = _failure_of(error, str(exc_info.traceback))
        retries, limit = self._request_dict.get("retries") or 0, self.task.max_retries
        # A limit that `retry()` was given is known to nobody else: then the last retry was for the same error.
        again = self._message.headers.get("x-retry-error-type") == failure[1] or (
            limit is not None and retries >= limit
        )
        spent = isinstance(error, _errors.MaxRetriesExceededError) or (retries > 0 and again)
        return "exhausted" if spent else "fatal", failure

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        if not soft and not self.acknowledged and self._parking is None:
            error = f"the task took longer than {timeout} seconds"
            self._parking = ("fatal", (error, "TimeLimitExceeded", None))
        return super().on_timeout(soft, timeout)

    def _success_was_stored(self) -> Any:
        found = super()._success_was_stored()
        if found:
            self._parking = None
        return found

    def _retry_worker_lost(self, exc: Any, exc_info: Any) -> Any:
        end, self._parking = self._parking, None
        token = retrying_attempt.set(RetryingAttempt(self._context, _failure_of(exc, None)))
        try:
            done = super()._retry_worker_lost(exc, exc_info)
        finally:
            retrying_attempt.reset(token)
        if not done:
            self._parking = end
        return done

    def acknowledge(self) -> None:
        if self._parking is None or self.acknowledged or not self._may_park:
            return super().acknowledge()  # type: ignore[no-any-return]
        return self._park()

    def reject(self, requeue: bool = False) -> None:
        if self.acknowledged or (requeue and self._parking is None) or not self._may_park:
            return super().reject(requeue)  # type: ignore[no-any-return]
        if requeue:
            self._requeue_counting_crash()
        else:
            self._parking = self._parking or ("fatal", ("the worker rejected the task", "", None))
            self._park()
        self.send_event("task-rejected", requeue=requeue)
        return None

    def _requeue_counting_crash(self) -> None:
        """Instead of a requeue: a copy that counts the crash, so that the task does not come back for ever."""
        crashes = _count_header(self._message.headers, "x-retry-crashes") + 1
        limit = self._app.retryrmq.crash_limit
        if crashes >= limit:
            assert self._parking is not None
            self._parking = ("delivery-limit", self._parking[1])
            return self._park()
        self._parking = None
        return self._store(received(self._message, x_retry_crashes=crashes).detoured())

    def _park(self) -> None:
        if self._is_parked or self._parking is None or not self._may_park:
            return
        self._is_parked = True
        reason, failure = self._parking
        message = received(self._message, x_retry_count=self._request_dict.get("retries") or 0)
        self._store(message.parked(reason, failure))

    def _store(self, decide: Decide) -> None:
        settle = None if self.acknowledged else self._settle
        copy_workers.add(PendingCopy(self._app.retryrmq.copies, self._message, settle, decide))
        self.acknowledged = True

    def _settle(self, is_stored: bool) -> None:
        if is_stored:
            self._on_ack(logger, self._connection_errors)
        else:
            self._on_reject(logger, self._connection_errors, True)


class Consumer(_consumers.Consumer):  # type: ignore[misc]
    """Celery's consumer. An application's own (``worker_consumer``) must be derived from this one."""

    #: What the worker had taken when it began to end.
    _taken: Sequence[Request] = ()

    def update_strategies(self) -> None:
        for task in self.app.tasks.values():
            kind = _symbol_by_name(task.Request)
            if not issubclass(kind, Request):
                task.Request = Request if kind is _requests.Request else type("Request", (Request, kind), {})
        super().update_strategies()

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        handle = super().create_task_handler(*args, **options)
        passed_on = (*self.connection_errors, *self.connection.channel_errors, MemoryError)

        def on_task_received(message: Any) -> Any:
            self._prepare(message)
            try:
                return None if self._wait_until_due(message) or self._copy_or_park_crashed(message) else handle(message)
            except passed_on:
                raise
            except Exception as error:
                # Celery's worker ends for some messages that are none of its own.
                if message.acknowledged:
                    raise
                _logs.log(logger, logging.ERROR, "a message cannot be handled: %r", error)
                self._park_undecodable(message, error).reject_log_error(logger, self.connection_errors)

        return on_task_received

    def _prepare(self, message: Any) -> None:
        message.call_soon = self.call_soon
        message.delivery_info["queue"] = self._queue_of(message)
        reject = message.reject_log_error

        def reject_log_error(log: Any, errors: Any, requeue: bool = False) -> None:
            try:
                _nack_requeue(message) if requeue else reject(log, errors)
            except errors as error:
                log.critical("Couldn't requeue %r, reason: %r", message.delivery_tag, error)

        message.reject_log_error = reject_log_error

    def _queue_of(self, message: Any) -> str | None:
        """Where copies of it come back to, which is nowhere if its queue goes with its worker."""
        tag = message.delivery_info.get("consumer_tag")
        names = {active: str(queue) for queue, active in self.task_consumer._active_tags.items()}
        name = names.get(tag) or str(message.delivery_info.get("routing_key"))
        return None if any(queue.name == name and is_temporary(queue) for queue in self.task_consumer.queues) else name

    def _wait_until_due(self, message: Any) -> bool:
        """Whether it is not due yet. Then it waits in the broker, and its ETA is over when it comes back."""
        eta = message.headers.get("eta") if isinstance(message.headers, dict) else None
        if not eta or not message.delivery_info["queue"]:
            return False
        try:
            delay = (due_at(self.app, eta) - datetime.now(timezone.utc)).total_seconds()
        except (AttributeError, TypeError, ValueError, OverflowError):
            return False  # Celery says what is wrong with it
        if delay < _MIN_WAIT:
            return False
        changed = {} if delay > MAX_DELAY else {"eta": None}
        self._store(message, received(message, **changed).deferred(min(delay, MAX_DELAY)))
        return True

    def _copy_or_park_crashed(self, message: Any) -> bool:
        """Whether it came back too often. See the rows 1, 2 and 4 of section 6 of PROTOCOL."""
        headers = message.headers if isinstance(message.headers, dict) else {}
        counted = _count_header(headers, "x-delivery-count") if message.delivery_info.get("redelivered") else 0
        own = _count_header(headers, "x-retry-crashes")
        task = self.app.tasks.get(headers.get("task"))
        if counted < _MIN_DELIVERIES or not message.delivery_info["queue"]:
            return False
        # A task that is acknowledged before it runs has not run: its worker crashed with other tasks.
        crashes = own if task is not None and not task.acks_late else own + counted
        integration = self.app.retryrmq
        if crashes >= integration.crash_limit and integration.park:
            error = _errors.WorkerLostError(f"it was delivered {crashes} times without an end")
            failure = (str(error), "WorkerLostError", None)
            if task is not None:
                self._fail(task, message, error)
            task_message = received(message, x_retry_count=headers.get("retries") or 0)
            self._store(message, task_message.parked("delivery-limit", failure))
        else:
            self._store(message, received(message, x_retry_crashes=min(crashes, _MAX_CRASHES)).detoured())
        return True

    def _fail(self, task: Any, message: Any, error: Exception) -> None:
        options = {"app": self.app, "hostname": self.hostname, "eventer": self.event_dispatcher, "task": task}
        try:
            _symbol_by_name(task.Request)(message, headers=message.headers, **options).fail(error)
        except Exception as unknown:
            _logs.log(logger, logging.WARNING, "the result of a parked task cannot be stored: %r", unknown)

    def on_decode_error(self, message: Any, exc: BaseException) -> None:
        super().on_decode_error(self._park_undecodable(message, exc), exc)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        super().on_unknown_message(body, self._park_undecodable(message, ValueError("this is not a message of Celery")))

    def on_unknown_task(self, body: Any, message: Any, exc: BaseException) -> None:
        super().on_unknown_task(
            body, self._park_undecodable(message, LookupError(f"this worker has no task {exc}")), exc
        )

    def on_invalid_task(self, body: Any, message: Any, exc: BaseException) -> None:
        super().on_invalid_task(body, self._park_undecodable(message, exc), exc)

    def _park_undecodable(self, message: Any, error: BaseException) -> Any:
        """Parks a message that Celery is about to drop. Returns what Celery may settle instead."""
        if not self.app.retryrmq.park or not hasattr(message, "ack_log_error"):
            return message
        if "queue" not in message.delivery_info:
            self._prepare(message)
        if not message.delivery_info["queue"]:
            return message
        headers = message.headers if isinstance(message.headers, dict) else {}
        stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        failure, task_message = (
            _failure_of(error, stack),
            received(message, x_retry_count=_count_header(headers, "retries")),
        )
        self._store(message, task_message.parked("undecodable", failure))
        return _SettledElsewhere(message)

    def _store(self, message: Any, decide: Decide) -> None:
        def settle(is_stored: bool) -> None:
            if is_stored:
                message.ack_log_error(logger, self.connection_errors)
            else:
                message.reject_log_error(logger, self.connection_errors, True)

        copy_workers.add(PendingCopy(self.app.retryrmq.copies, message, settle, decide))

    def on_close(self) -> None:
        # Celery forgets them now, before it ends the pool.
        known = {*_state.reserved_requests, *_state.active_requests, *_state.scheduled_requests}
        self._taken = [request for request in known if isinstance(request, Request)]
        super().on_close()

    def shutdown(self) -> None:
        for request in self._taken:
            request.requeue_unstarted()
        copy_workers.drain(self.app.retryrmq.drain_timeout, self.connection_errors)
        super().shutdown()


def _nack_requeue(message: Any) -> None:
    """Requeues it. From 4.3 on a quorum queue counts a `reject`, and no `nack`."""
    message.channel.send_method(_Nack, "Lbb", (message.delivery_tag, False, True))
    message._state = "REQUEUED"


def _count_header(headers: Any, name: str) -> int:
    """A header that anybody may have written."""
    value = headers.get(name)
    return min(value, 1_000_000) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
