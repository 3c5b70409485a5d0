"""The thread that fetches notifications from the native half and passes them to event loops, listeners, credential providers and loggers."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread
import contextlib
import itertools
import json
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from . import _greenlets, _log_queue, _logs, _native, events
from ._attempts import requeue_unstarted
from ._credential_provider import CredentialProvider
from ._greenlets import is_forwarded_ctrl_c
from ._listeners import ListenerQueue
from ._native import CredentialRequest, Message, Operation, Subscription
from .errors import RetryRmqError

logger = _logs.logger("retryrmq")

#: How often the event loops of consumers are checked, in seconds.
_CHECK_INTERVAL = 1.0
#: How long the thread pauses when it could not wait for notifications, in seconds.
_FETCH_PAUSE = 0.05
#: How long the end of the interpreter waits for listeners, in seconds.
_END_TIMEOUT = 2.0


class _PendingOperation(NamedTuple):
    #: ``None``: whatever waits is a greenlet of the dispatcher's thread.
    loop: asyncio.AbstractEventLoop | None
    done: Callable[[Operation], None]
    operation: Operation
    #: Called on this thread if the loop was closed first.
    lost: Callable[[], None]


class LoopBound(Protocol):
    """Handlers at work on an event loop."""

    def abandon(self) -> None:
        """The event loop was closed: what its handlers hold goes back to its queue."""


class Timed(Protocol):
    """Handlers with a time limit on an event loop."""

    def check_timeouts(self) -> None:
        """Ends the attempts whose time is over although something blocks the event loop."""


class _LoopConsumer(NamedTuple):
    """The event loop of a consumer. The consumer ends with it, because nothing could handle its messages."""

    loop: weakref.ref[asyncio.AbstractEventLoop]
    subscription: weakref.ref[Subscription]
    #: They know the messages of their handlers; ``None`` for a consumer that is iterated over.
    workers: weakref.ref[LoopBound] | None
    queue: str
    #: The thread that runs the loop.
    thread: threading.Thread


class NotificationDispatcher:
    """One per process: threads do not survive a fork."""

    def __init__(self) -> None:
        self.native = _native.NotificationQueue()
        #: Where threads are greenlets: how the dispatcher's own greenlet waits.
        self._wait_readable = _greenlets.wait_readable()
        #: What it waits for.
        self._readable = -1 if self._wait_readable is None else self._wakeups()
        #: Notifications for greenlets, until they are passed on.
        self._fetched: deque[Any] = deque()
        #: Whether the thread has ended, or could not be started.
        self._ended = False
        self._pid = os.getpid()
        self._native_thread = threading.get_native_id()
        self._tickets = itertools.count(1)
        self._pending: dict[int, _PendingOperation] = {}
        self._listener_queues: dict[int, ListenerQueue] = {}
        #: Threads that run a consumer.
        self._consumer_threads: list[threading.Thread] = []
        #: Listeners that end with an operation, by its ticket.
        self._listener_ends: dict[int, int] = {}
        self._loop_consumers: dict[int, _LoopConsumer] = {}
        #: Handlers with a time limit, and how often to check them, in seconds.
        self._timed_workers: dict[int, tuple[weakref.ref[Timed], float]] = {}
        self._timeouts_checked_at = 0.0
        #: The functions that give credentials, as long as they can be called.
        self._credential_providers: dict[int, CredentialProvider] = {}
        #: Subscriptions that must end before the interpreter does, with the messages of each that no handler has begun.
        self.subscriptions: weakref.WeakKeyDictionary[Subscription, weakref.ref[deque[Message]]] = (
            weakref.WeakKeyDictionary()
        )
        self._thread = threading.Thread(target=self._run, name="retryrmq-notifications", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        try:
            self._thread.start()
        except (RuntimeError, MemoryError):  # the machine has no more threads
            self._ended = True
            raise

    def _wakeups(self) -> int:
        try:
            return self.native.wakeups()
        except OSError as error:
            if os.name != "posix":
                raise RetryRmqError(
                    "gevent and eventlet are supported on POSIX systems alone, such as Linux and macOS"
                ) from error
            raise RetryRmqError(f"there is nothing that greenlets can wait for: {error}") from error

    @property
    def is_of_greenlets(self) -> bool:
        """Whether its thread is a greenlet, as those that it works for."""
        return self._wait_readable is not None

    def wait(self, operation: Operation, seconds: float | None = None, *, only_here: bool = False) -> Any:
        """Waits on this thread for an operation. Returns its answer or raises its error; returns ``None`` after ``seconds``.

        A greenlet waits without holding up the others. If its wait is interrupted, the operation goes on, unless it is awaited ``only_here``.
        """
        if not self._can_be_woken() or operation.done():
            return operation.wait(seconds)
        done, ticket = threading.Event(), next(self._tickets)
        self._pending[ticket] = _PendingOperation(None, lambda _: done.set(), operation, lambda: None)
        try:
            operation.notify(self.native, ticket)
            if not done.wait(seconds):
                return None
        except BaseException:
            if only_here:
                operation.give_up()
            raise
        finally:
            self._pending.pop(ticket, None)
        # Otherwise something has ended the dispatcher.
        return operation.result() if operation.done() else operation.wait(seconds)

    def _can_be_woken(self) -> bool:
        """Whether the caller is a greenlet that the dispatcher can wake."""
        # A native thread that is not the dispatcher's, such as one of gevent's thread pool, is blocked, as by everything that is called there.
        here = self.is_of_greenlets and threading.get_native_id() == self._native_thread and os.getpid() == self._pid
        # Not whether the thread is alive: while one greenlet starts it, others may wait for it already.
        return here and not self._ended

    def take_messages(self, source: Callable[[], list[Message]], subscription: Subscription) -> list[Message]:
        """Messages for a greenlet: waits until there are some. Empty if no more will come, or if another one took them."""
        time.sleep(0)  # the others, if messages come faster than they are handled
        found = source()
        if not found and self.wait(subscription.ready(), only_here=True):
            found = source()
        return found

    def when_done(
        self,
        operation: Operation,
        done: Callable[[Operation], None],
        lost: Callable[[], None] = lambda: None,
    ) -> int:
        """Calls ``done`` in the running event loop at the end of ``operation``. Returns the ticket of the wait."""
        ticket = next(self._tickets)
        self._pending[ticket] = _PendingOperation(asyncio.get_running_loop(), done, operation, lost)
        operation.notify(self.native, ticket)
        return ticket

    async def wait_async(self, operation: Operation, *, only_here: bool = False) -> Any:
        """Waits for an operation and returns its answer, or raises its error.

        A cancelled wait takes no answer. The operation goes on; if it is awaited ``only_here`` and changes nothing, it is given up.
        """
        if not operation.done():
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def done(_: Operation) -> None:
                if not ended.done():
                    ended.set_result(None)

            ticket = self.when_done(operation, done)
            try:
                await ended
            except asyncio.CancelledError:
                if only_here:
                    operation.give_up()
                raise
            finally:
                # Here, because an operation that goes on may end as late as its consumer.
                self._pending.pop(ticket, None)
        return operation.result()

    def end_with_loop(self, subscription: Subscription, workers: LoopBound | None, queue: str) -> None:
        """Ends the subscription if the running event loop is closed first."""
        loop, at_work = asyncio.get_running_loop(), None if workers is None else weakref.ref(workers)
        thread = threading.current_thread()
        self._loop_consumers[next(self._tickets)] = _LoopConsumer(
            weakref.ref(loop), weakref.ref(subscription), at_work, queue, thread
        )

    @contextlib.contextmanager
    def consumer_thread(self) -> Iterator[None]:
        """The current thread runs a consumer until the end of the block, whoever owns the thread."""
        thread = threading.current_thread()
        self._consumer_threads.append(thread)
        try:
            yield
        finally:
            self._consumer_threads.remove(thread)

    def has_consumer_threads(self) -> bool:
        """Whether a thread runs a consumer, itself or by its event loop."""
        own = threading.main_thread(), threading.current_thread()
        threads = self._consumer_threads.copy()
        for bound in list(self._loop_consumers.values()):
            loop, subscription = bound.loop(), bound.subscription()
            if loop is not None and loop.is_running() and subscription is not None and not subscription.is_closing:
                threads.append(bound.thread)
        return any(thread.is_alive() and not thread.daemon and thread not in own for thread in threads)

    def watch_timeouts(self, workers: Timed, limit: float) -> None:
        """Checks handlers with this time limit, in seconds, as long as they live."""
        self._timed_workers[next(self._tickets)] = weakref.ref(workers), max(0.05, min(_CHECK_INTERVAL / 4, limit / 4))

    def _check_timeouts(self) -> None:
        now = time.monotonic()
        if now - self._timeouts_checked_at < self._check_interval():
            return
        self._timeouts_checked_at = now
        for number, (ref, _) in list(self._timed_workers.items()):
            workers = ref()
            if workers is None:
                del self._timed_workers[number]
            else:
                _run_safely(workers.check_timeouts)

    def _check_interval(self) -> float:
        """How long to wait until the next check of timeouts or event loops."""
        return min([_CHECK_INTERVAL, *(interval for _, interval in list(self._timed_workers.values()))])

    def _check_loops(self) -> None:
        for number, bound in list(self._loop_consumers.items()):
            loop, subscription = bound.loop(), bound.subscription()
            if subscription is not None and not subscription.is_closing:
                if loop is not None and not loop.is_closed():
                    continue
                workers = None if bound.workers is None else bound.workers()
                if workers is not None:
                    workers.abandon()
                else:
                    self._abandon(subscription)
                _log_queue.write(
                    "retryrmq",
                    logging.WARNING,
                    "%s: the event loop was closed before the consumer; its messages are delivered again",
                    bound.queue,
                    fields=_logs.about_queue(bound.queue),
                )
            del self._loop_consumers[number]

    def add_listener(self, listener_queue: ListenerQueue) -> int:
        """Registers a listener for events, and returns its number."""
        number = next(self._tickets)
        self._listener_queues[number] = listener_queue
        return number

    def add_credential_provider(self, provider: CredentialProvider) -> int:
        """Registers a provider of credentials, and returns its number. The native half says when there will be no more requests."""
        number = next(self._tickets)
        self._credential_providers[number] = provider
        return number

    def _request_credentials(self, number: int, request: CredentialRequest | None) -> None:
        provider = self._credential_providers.get(number)
        if provider is not None and request is not None:
            provider.request(request)
        elif provider is not None:
            del self._credential_providers[number]
            provider.end()

    def _check_credential_calls(self) -> None:
        for provider in list(self._credential_providers.values()):
            provider.check()

    def remove_listener(self, number: int) -> None:
        """Ends a listener."""
        listener_queue = self._listener_queues.pop(number, None)
        if listener_queue is not None:
            listener_queue.end()

    def remove_listener_after(self, end: Operation, number: int) -> None:
        """Like :meth:`remove_listener`, after all events until the end of ``end`` are in its queue."""
        ticket = next(self._tickets)
        self._listener_ends[ticket] = number
        end.notify(self.native, ticket)

    def _wait_for_notifications(self) -> Any:
        """Waits for notifications, for at most a while. ``None`` after the end."""
        if self._wait_readable is None:
            return self.native.fetch(self._check_interval())
        # Greenlets live on in a forked child. There the native half's locks may be locked forever, and its notifications are the parent's.
        if os.getpid() != self._pid:
            return None
        notifications = self._fetch()
        if notifications is None or any(notifications):
            return notifications
        self._fetched.clear()
        try:
            self._wait_readable(self._readable, self._check_interval())
        except Exception:  # whatever the library has against it, there may be notifications
            time.sleep(_FETCH_PAUSE)
        return self._fetch() if os.getpid() == self._pid else None

    def _fetch(self) -> Any:
        if not self._fetched:
            # Not by an assignment: Ctrl-C may come between it and the call, whose notifications would be lost.
            self._fetched.extend(map(self.native.fetch, (0.0,)))
        return self._fetched[0]

    def _run(self) -> None:
        try:
            while self._dispatch_until_ended():
                pass
        finally:
            self._ended = True
            if sys.exc_info()[0] is not None:  # somebody has killed this greenlet
                for pending in list(self._pending.values()):
                    if pending.loop is None:
                        pending.done(pending.operation)

    def _dispatch_until_ended(self) -> bool:
        """Passes notifications on. Returns whether it was interrupted before the end."""
        try:
            while True:
                try:
                    notifications = self._wait_for_notifications()
                except Exception as error:  # as for want of memory
                    _log_queue.write("retryrmq", logging.ERROR, "no notifications could be fetched", exc_info=error)
                    time.sleep(_CHECK_INTERVAL)
                    continue
                if notifications is None:
                    return False
                _run_safely(self._check_loops)
                _run_safely(self._check_credential_calls)
                _run_safely(self._check_timeouts)
                # In a separate call: variables of this loop would keep objects alive until the next ones.
                _run_safely(self._dispatch, *notifications)
                self._fetched.clear()
                del notifications
        except KeyboardInterrupt as error:
            if not is_forwarded_ctrl_c(error):
                raise
        return True

    def _dispatch(
        self,
        finished: list[int],
        events_told: list[tuple[int, str]],
        credential_requests: list[tuple[int, CredentialRequest | None]],
        lines: list[tuple[str, int, str, list[tuple[str, str]]]],
        missed: int,
    ) -> None:
        # Before the ends of operations: a listener must have all events of a consumer before its end is known.
        for number, row in events_told:
            _run_safely(self._deliver_event, number, row)
        for number, request in credential_requests:
            _run_safely(self._request_credentials, number, request)
        _run_safely(self._finish_operations, finished)
        for line in lines:
            _run_safely(self._log, *line)
        if missed:
            _log_queue.write(
                "retryrmq", logging.WARNING, "%d events were dropped: their listeners are too slow", missed
            )

    def _log(self, module: str, level: int, text: str, fields: list[tuple[str, str]]) -> None:
        logger = f"retryrmq.{module}" if module else "retryrmq"
        _log_queue.write(logger, level, "%s", text, fields=_logs.fields(fields) if fields else None)

    def _finish_operations(self, finished: list[int]) -> None:
        for loop, all_pending in self._pending_by_loop(finished).items():
            _run_safely(_finish, all_pending) if loop is None else _run_safely(_finish_on, loop, all_pending)
        # Last, because all of this is done again if Ctrl-C interrupts it.
        for ticket in finished:
            self._pending.pop(ticket, None)
            self._listener_ends.pop(ticket, None)

    def _pending_by_loop(self, finished: list[int]) -> dict[asyncio.AbstractEventLoop | None, deque[_PendingOperation]]:
        loops: dict[asyncio.AbstractEventLoop | None, deque[_PendingOperation]] = {}
        for ticket in finished:
            if ticket in self._listener_ends:
                self.remove_listener(self._listener_ends[ticket])
                continue
            pending = self._pending.get(ticket)
            if pending is not None:
                loops.setdefault(pending.loop, deque()).append(pending)
        return loops

    def _deliver_event(self, number: int, row: str) -> None:
        listener_queue = self._listener_queues.get(number)
        if listener_queue is None:
            return
        name = row
        try:
            facts = json.loads(row)
            name = facts.pop("name")
            event = events.made(name, facts)
            if event is not None:
                listener_queue.put(event)
        except Exception as error:
            _log_queue.write("retryrmq", logging.ERROR, "the event %r could not be decoded", name, exc_info=error)

    def _abandon(self, subscription: Subscription) -> None:
        """Ends a subscription. What nobody has begun is requeued uncounted."""
        taken = self.subscriptions.get(subscription)
        unstarted = None if taken is None else taken()
        if unstarted:
            with contextlib.suppress(Exception):  # in a forked child nothing can be settled
                subscription.close()
                requeue_unstarted(subscription, unstarted)
        subscription.abandon()

    def abandon_all(self) -> None:
        """Ends everything that still runs."""
        for bound in list(self._loop_consumers.values()):
            loop, workers = bound.loop(), None if bound.workers is None else bound.workers()
            # A loop that was stopped would no longer pass on what is acknowledged.
            if workers is not None and not (loop is not None and loop.is_running()):
                workers.abandon()
        left = [subscription for ref in self.subscriptions.keyrefs() if (subscription := ref()) is not None]
        for subscription in left:
            self._abandon(subscription)
        for subscription in left:
            with contextlib.suppress(Exception):
                # Longer than the three seconds that copies on their way get.
                self.wait(subscription.wait_closed(), 5.0)

    def end(self) -> None:
        """Ends everything that still runs, so that no native object is in use when the interpreter ends."""
        self.abandon_all()
        self.native.end()
        self._thread.join(_END_TIMEOUT)
        self._end_listeners()
        _log_queue.wait(_END_TIMEOUT)

    def _end_listeners(self) -> None:
        listener_queues = list(self._listener_queues.values())
        for number in list(self._listener_queues):
            self.remove_listener(number)
        concurrent.futures.wait(
            [listener_queue.done for listener_queue in listener_queues if listener_queue.left], _END_TIMEOUT
        )
        left = sum(listener_queue.left for listener_queue in listener_queues)
        if left:
            _log_queue.write("retryrmq", logging.WARNING, "%d events were not told: the process ends", left)


def _run_safely(action: Callable[..., None], *args: Any) -> None:
    """Runs a step. The thread goes on whatever the step raises, or nothing would ever be answered again. If Ctrl-C interrupts it, it is run again."""
    while True:
        try:
            action(*args)
        except BaseException as error:
            if is_forwarded_ctrl_c(error):
                continue
            _log_queue.write(
                "retryrmq", logging.ERROR, "notifications were lost; this is a bug of retryrmq", exc_info=error
            )
        return


def _finish_on(loop: asyncio.AbstractEventLoop, all_pending: deque[_PendingOperation]) -> None:
    try:
        loop.call_soon_threadsafe(_finish, all_pending)
    except RuntimeError:  # closed
        for pending in all_pending:
            pending.lost()


def _finish(all_pending: deque[_PendingOperation]) -> None:
    # Emptied: the thread that fetched the notifications may keep the list for long.
    while all_pending:
        all_pending[0].done(all_pending[0].operation)
        all_pending.popleft()


_dispatcher: NotificationDispatcher | None = None
_creating = threading.Lock()


def dispatcher() -> NotificationDispatcher:
    """This process's dispatcher."""
    global _dispatcher
    found = _dispatcher
    if found is None:
        with _creating:
            found, made = _dispatcher, _dispatcher is None
            if found is None:
                found = NotificationDispatcher()
                if not found.is_of_greenlets:
                    found.start()
                _dispatcher = found
        # Without the lock: where threads are greenlets, this lets others run.
        if made and found.is_of_greenlets:
            _start(found)
    elif found.is_of_greenlets != (_greenlets.wait_readable() is not None):
        raise RetryRmqError(
            "gevent or eventlet has patched threads after retryrmq was used, whose threads are real ones now; call "
            "`gevent.monkey.patch_all()` or `eventlet.monkey_patch()` first in your program, at the latest before the first connection"
        )
    _logs.follow_levels()
    return found


def wait(operation: Operation, seconds: float | None = None, *, only_here: bool = False) -> Any:
    """Like :meth:`NotificationDispatcher.wait`, for whoever needs no dispatcher where threads are threads."""
    if _greenlets.wait_readable() is None:
        return operation.wait(seconds)
    return dispatcher().wait(operation, seconds, only_here=only_here)


def _start(made: NotificationDispatcher) -> None:
    global _dispatcher
    try:
        made.start()
    except (RuntimeError, MemoryError):  # nothing was started: the next call tries again
        _dispatcher = None
        raise


def _after_fork() -> None:
    global _dispatcher, _creating
    _dispatcher, _creating = None, threading.Lock()


def _before_executors_end() -> None:
    """The main thread has ended, and the interpreter is about to end. Executors take no more work now, but those with work are waited for;
    handlers that use them would fail, one message after the other."""
    if _dispatcher is not None and not _dispatcher.has_consumer_threads() and not _other_threads_run():
        _dispatcher.abandon_all()


def _other_threads_run() -> bool:
    """Whether a thread keeps the interpreter running, such as that of a server, or one that runs a consumer."""
    executors = sys.modules.get("concurrent.futures.process")
    workers = {*getattr(concurrent.futures.thread, "_threads_queues", ()), *getattr(executors, "_threads_wakeups", ())}
    own = threading.main_thread(), threading.current_thread()
    return any(not (thread.daemon or thread in own or thread in workers) for thread in threading.enumerate())


def _at_exit() -> None:
    if _dispatcher is not None:
        _dispatcher.end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
# Called in the reverse order: before executors end, which `atexit` is not. Those of processes register when they are imported.
with contextlib.suppress(ImportError):
    import concurrent.futures.process
_register: Callable[[Callable[[], None]], None] | None = getattr(threading, "_register_atexit", None)
if _register is not None:
    with contextlib.suppress(RuntimeError):  # the interpreter is about to end already
        _register(_before_executors_end)
