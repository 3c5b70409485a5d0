"""The thread that fetches news from the native half and passes it to event loops, listeners, askers and loggers."""

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

from . import _greenlets, _lines, _logs, _native, events
from ._asking import Asker
from ._attempts import return_the_unstarted
from ._greenlets import is_of_others
from ._listening import Mailbox
from ._native import Message, Operation, Question, Subscription
from .errors import RetryRmqError

logger = _logs.logger("retryrmq")

#: How often the event loops of consumers are checked, in seconds.
_LOOK = 1.0
#: How long the thread pauses when it could not wait for news, in seconds.
_PAUSE = 0.05
#: How long the end of the interpreter waits for listeners, in seconds.
_PATIENCE = 2.0


class _Awaited(NamedTuple):
    #: ``None``: whatever waits is a greenlet of the pump's thread.
    loop: asyncio.AbstractEventLoop | None
    done: Callable[[Operation], None]
    operation: Operation
    #: Called on this thread if the loop was closed first.
    lost: Callable[[], None]


class Workers(Protocol):
    """Handlers at work on an event loop."""

    def let_go(self) -> None:
        """The event loop was closed: what its handlers hold goes back to its queue."""


class Watched(Protocol):
    """Handlers with a time limit on an event loop."""

    def look(self) -> None:
        """Ends the attempts whose time is over although something blocks the event loop."""


class _Home(NamedTuple):
    """The event loop of a consumer. The consumer ends with it, because nothing could handle its messages."""

    loop: weakref.ref[asyncio.AbstractEventLoop]
    subscription: weakref.ref[Subscription]
    #: They know the messages of their handlers; ``None`` for a consumer that is iterated over.
    workers: weakref.ref[Workers] | None
    queue: str
    #: The thread that runs the loop.
    thread: threading.Thread


class Pump:
    """One per process: threads do not survive a fork."""

    def __init__(self) -> None:
        self.native = _native.Pump()
        #: Where threads are greenlets: how the pump's own greenlet waits.
        self._wait_readable = _greenlets.wait_readable()
        #: What it waits for.
        self._readable = -1 if self._wait_readable is None else self._wakeups()
        #: News for greenlets, until they are passed on.
        self._fetched: deque[Any] = deque()
        #: Whether the thread has ended, or could not be started.
        self._over = False
        self._pid = os.getpid()
        self._native_thread = threading.get_native_id()
        self._tickets = itertools.count(1)
        self._awaited: dict[int, _Awaited] = {}
        self._mailboxes: dict[int, Mailbox] = {}
        #: Threads that run a consumer.
        self._staying: list[threading.Thread] = []
        #: Mailboxes that end with an operation, by its ticket.
        self._last_of: dict[int, int] = {}
        self._homes: dict[int, _Home] = {}
        #: Handlers with a time limit, and how often to look at them, in seconds.
        self._watched: dict[int, tuple[weakref.ref[Watched], float]] = {}
        self._looked_at = 0.0
        #: The functions that give credentials, as long as they can be asked.
        self._askers: dict[int, Asker] = {}
        #: Subscriptions that must end before the interpreter does, with the messages of each that no handler has begun.
        self.running: weakref.WeakKeyDictionary[Subscription, weakref.ref[deque[Message]]] = weakref.WeakKeyDictionary()
        self._thread = threading.Thread(target=self._run, name="retryrmq-news", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        try:
            self._thread.start()
        except (RuntimeError, MemoryError):  # the machine has no more threads
            self._over = True
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
        if not self._is_here() or operation.done():
            return operation.wait(seconds)
        done, ticket = threading.Event(), next(self._tickets)
        self._awaited[ticket] = _Awaited(None, lambda _: done.set(), operation, lambda: None)
        try:
            operation.notify(self.native, ticket)
            if not done.wait(seconds):
                return None
        except BaseException:
            if only_here:
                operation.give_up()
            raise
        finally:
            self._awaited.pop(ticket, None)
        # Otherwise something has ended the pump.
        return operation.result() if operation.done() else operation.wait(seconds)

    def _is_here(self) -> bool:
        """Whether the caller is a greenlet that the pump can wake."""
        # A native thread that is not the pump's, such as one of gevent's thread pool, is blocked, as by everything that is called there.
        here = self.is_of_greenlets and threading.get_native_id() == self._native_thread and os.getpid() == self._pid
        # Not whether the thread is alive: while one greenlet starts it, others may wait for it already.
        return here and not self._over

    def take(self, source: Callable[[], list[Message]], subscription: Subscription) -> list[Message]:
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
        self._awaited[ticket] = _Awaited(asyncio.get_running_loop(), done, operation, lost)
        operation.notify(self.native, ticket)
        return ticket

    async def answer(self, operation: Operation, *, only_here: bool = False) -> Any:
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
                self._awaited.pop(ticket, None)
        return operation.result()

    def lives_here(self, subscription: Subscription, workers: Workers | None, queue: str) -> None:
        """Ends the subscription if the running event loop is closed first."""
        loop, at_work = asyncio.get_running_loop(), None if workers is None else weakref.ref(workers)
        thread = threading.current_thread()
        self._homes[next(self._tickets)] = _Home(weakref.ref(loop), weakref.ref(subscription), at_work, queue, thread)

    @contextlib.contextmanager
    def stays(self) -> Iterator[None]:
        """The current thread runs a consumer until the end of the block, whoever owns the thread."""
        thread = threading.current_thread()
        self._staying.append(thread)
        try:
            yield
        finally:
            self._staying.remove(thread)

    def has_stayers(self) -> bool:
        """Whether a thread runs a consumer, itself or by its event loop."""
        own = threading.main_thread(), threading.current_thread()
        threads = self._staying.copy()
        for home in list(self._homes.values()):
            loop, subscription = home.loop(), home.subscription()
            if loop is not None and loop.is_running() and subscription is not None and not subscription.is_closing:
                threads.append(home.thread)
        return any(thread.is_alive() and not thread.daemon and thread not in own for thread in threads)

    def watch(self, workers: Watched, limit: float) -> None:
        """Looks at handlers with this time limit, in seconds, as long as they live."""
        self._watched[next(self._tickets)] = weakref.ref(workers), max(0.05, min(_LOOK / 4, limit / 4))

    def _look_at_limits(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < self._step():
            return
        self._looked_at = now
        for number, (ref, _) in list(self._watched.items()):
            workers = ref()
            if workers is None:
                del self._watched[number]
            else:
                _surely(workers.look)

    def _step(self) -> float:
        """How long to wait until the next look at limits or event loops."""
        return min([_LOOK, *(step for _, step in list(self._watched.values()))])

    def _look_at_homes(self) -> None:
        for number, home in list(self._homes.items()):
            loop, subscription = home.loop(), home.subscription()
            if subscription is not None and not subscription.is_closing:
                if loop is not None and not loop.is_closed():
                    continue
                workers = None if home.workers is None else home.workers()
                if workers is not None:
                    workers.let_go()
                else:
                    self._end_now(subscription)
                _lines.write(
                    "retryrmq",
                    logging.WARNING,
                    "%s: the event loop was closed before the consumer; its messages are delivered again",
                    home.queue,
                    fields=_logs.about_queue(home.queue),
                )
            del self._homes[number]

    def listen(self, mailbox: Mailbox) -> int:
        """Registers a mailbox for events, and returns its number."""
        number = next(self._tickets)
        self._mailboxes[number] = mailbox
        return number

    def asks(self, asker: Asker) -> int:
        """Registers an asker for questions, and returns its number. The native half says when there will be no more."""
        number = next(self._tickets)
        self._askers[number] = asker
        return number

    def _ask(self, number: int, question: Question | None) -> None:
        asker = self._askers.get(number)
        if asker is not None and question is not None:
            asker.ask(question)
        elif asker is not None:
            del self._askers[number]
            asker.end()

    def _look_at_askers(self) -> None:
        for asker in list(self._askers.values()):
            asker.look()

    def unlisten(self, number: int) -> None:
        """Ends a mailbox."""
        mailbox = self._mailboxes.pop(number, None)
        if mailbox is not None:
            mailbox.end()

    def unlisten_after(self, end: Operation, number: int) -> None:
        """Like :meth:`unlisten`, after all events until the end of ``end`` are in the mailbox."""
        ticket = next(self._tickets)
        self._last_of[ticket] = number
        end.notify(self.native, ticket)

    def _news(self) -> Any:
        """Waits for news, for at most a while. ``None`` after the end."""
        if self._wait_readable is None:
            return self.native.news(self._step())
        # Greenlets live on in a forked child. There the native half's locks may be locked forever, and its news are the parent's.
        if os.getpid() != self._pid:
            return None
        news = self._fetch()
        if news is None or any(news):
            return news
        self._fetched.clear()
        try:
            self._wait_readable(self._readable, self._step())
        except Exception:  # whatever the library has against it, there may be news
            time.sleep(_PAUSE)
        return self._fetch() if os.getpid() == self._pid else None

    def _fetch(self) -> Any:
        if not self._fetched:
            # Not by an assignment: Ctrl-C may come between it and the call, whose news would be lost.
            self._fetched.extend(map(self.native.news, (0.0,)))
        return self._fetched[0]

    def _run(self) -> None:
        try:
            while self._goes_on():
                pass
        finally:
            self._over = True
            if sys.exc_info()[0] is not None:  # somebody has killed this greenlet
                for awaited in list(self._awaited.values()):
                    if awaited.loop is None:
                        awaited.done(awaited.operation)

    def _goes_on(self) -> bool:
        """Passes news on. Returns whether it was interrupted before the end."""
        try:
            while True:
                try:
                    news = self._news()
                except Exception as error:  # as for want of memory
                    _lines.write("retryrmq", logging.ERROR, "no news could be fetched", exc_info=error)
                    time.sleep(_LOOK)
                    continue
                if news is None:
                    return False
                _surely(self._look_at_homes)
                _surely(self._look_at_askers)
                _surely(self._look_at_limits)
                # In a separate call: variables of this loop would keep objects alive until the next news.
                _surely(self._handle, *news)
                self._fetched.clear()
                del news
        except KeyboardInterrupt as error:
            if not is_of_others(error):
                raise
        return True

    def _handle(
        self,
        finished: list[int],
        told: list[tuple[int, str]],
        asked: list[tuple[int, Question | None]],
        lines: list[tuple[str, int, str, list[tuple[str, str]]]],
        missed: int,
    ) -> None:
        # Before the ends of operations: a listener must have all events of a consumer before its end is known.
        for number, row in told:
            _surely(self._tell, number, row)
        for number, question in asked:
            _surely(self._ask, number, question)
        _surely(self._pass_on, finished)
        for line in lines:
            _surely(self._write, *line)
        if missed:
            _lines.write("retryrmq", logging.WARNING, "%d events were dropped: their listeners are too slow", missed)

    def _write(self, module: str, level: int, text: str, fields: list[tuple[str, str]]) -> None:
        logger = f"retryrmq.{module}" if module else "retryrmq"
        _lines.write(logger, level, "%s", text, fields=_logs.fields(fields) if fields else None)

    def _pass_on(self, finished: list[int]) -> None:
        for loop, all_awaited in self._awaited_by_loop(finished).items():
            _surely(_finish, all_awaited) if loop is None else _surely(_finish_on, loop, all_awaited)
        # Last, because all of this is done again if Ctrl-C interrupts it.
        for ticket in finished:
            self._awaited.pop(ticket, None)
            self._last_of.pop(ticket, None)

    def _awaited_by_loop(self, finished: list[int]) -> dict[asyncio.AbstractEventLoop | None, deque[_Awaited]]:
        loops: dict[asyncio.AbstractEventLoop | None, deque[_Awaited]] = {}
        for ticket in finished:
            if ticket in self._last_of:
                self.unlisten(self._last_of[ticket])
                continue
            awaited = self._awaited.get(ticket)
            if awaited is not None:
                loops.setdefault(awaited.loop, deque()).append(awaited)
        return loops

    def _tell(self, number: int, row: str) -> None:
        mailbox = self._mailboxes.get(number)
        if mailbox is None:
            return
        name = row
        try:
            facts = json.loads(row)
            name = facts.pop("name")
            event = events.made(name, facts)
            if event is not None:
                mailbox.put(event)
        except Exception as error:
            _lines.write("retryrmq", logging.ERROR, "the event %r could not be decoded", name, exc_info=error)

    def _end_now(self, subscription: Subscription) -> None:
        """Ends a subscription. What nobody has begun is requeued uncounted."""
        taken = self.running.get(subscription)
        unstarted = None if taken is None else taken()
        if unstarted:
            with contextlib.suppress(Exception):  # in a forked child nothing can be settled
                subscription.close()
                return_the_unstarted(subscription, unstarted)
        subscription.abandon()

    def let_go(self) -> None:
        """Ends everything that still runs."""
        for home in list(self._homes.values()):
            loop, workers = home.loop(), None if home.workers is None else home.workers()
            # A loop that was stopped would no longer pass on what is acknowledged.
            if workers is not None and not (loop is not None and loop.is_running()):
                workers.let_go()
        left = [subscription for ref in self.running.keyrefs() if (subscription := ref()) is not None]
        for subscription in left:
            self._end_now(subscription)
        for subscription in left:
            with contextlib.suppress(Exception):
                # Longer than the three seconds that copies on their way get.
                self.wait(subscription.wait_closed(), 5.0)

    def end(self) -> None:
        """Ends everything that still runs, so that no native object is in use when the interpreter ends."""
        self.let_go()
        self.native.end()
        self._thread.join(_PATIENCE)
        self._end_of_listening()
        _lines.wait(_PATIENCE)

    def _end_of_listening(self) -> None:
        mailboxes = list(self._mailboxes.values())
        for number in list(self._mailboxes):
            self.unlisten(number)
        concurrent.futures.wait([mailbox.done for mailbox in mailboxes if mailbox.left], _PATIENCE)
        left = sum(mailbox.left for mailbox in mailboxes)
        if left:
            _lines.write("retryrmq", logging.WARNING, "%d events were not told: the process ends", left)


def _surely(step: Callable[..., None], *args: Any) -> None:
    """Runs a step. The thread goes on whatever the step raises, or nothing would ever be answered again. If Ctrl-C interrupts it, it is run again."""
    while True:
        try:
            step(*args)
        except BaseException as error:
            if is_of_others(error):
                continue
            _lines.write("retryrmq", logging.ERROR, "news were lost; this is a bug of retryrmq", exc_info=error)
        return


def _finish_on(loop: asyncio.AbstractEventLoop, all_awaited: deque[_Awaited]) -> None:
    try:
        loop.call_soon_threadsafe(_finish, all_awaited)
    except RuntimeError:  # closed
        for awaited in all_awaited:
            awaited.lost()


def _finish(all_awaited: deque[_Awaited]) -> None:
    # Emptied: the thread that fetched the news may keep the list for long.
    while all_awaited:
        all_awaited[0].done(all_awaited[0].operation)
        all_awaited.popleft()


_pump: Pump | None = None
_making = threading.Lock()


def pump() -> Pump:
    """This process's pump."""
    global _pump
    found = _pump
    if found is None:
        with _making:
            found, made = _pump, _pump is None
            if found is None:
                found = Pump()
                if not found.is_of_greenlets:
                    found.start()
                _pump = found
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
    """Like :meth:`Pump.wait`, for whoever needs no pump where threads are threads."""
    if _greenlets.wait_readable() is None:
        return operation.wait(seconds)
    return pump().wait(operation, seconds, only_here=only_here)


def _start(made: Pump) -> None:
    global _pump
    try:
        made.start()
    except (RuntimeError, MemoryError):  # nothing was started: the next call tries again
        _pump = None
        raise


def _after_fork() -> None:
    global _pump, _making
    _pump, _making = None, threading.Lock()


def _before_the_end() -> None:
    """The main thread has ended, and the interpreter is about to end. Executors take no more work now, but those with work are waited for;
    handlers that use them would fail, one message after the other."""
    if _pump is not None and not _pump.has_stayers() and not _somebody_stays():
        _pump.let_go()


def _somebody_stays() -> bool:
    """Whether a thread keeps the interpreter running, such as that of a server, or one that runs a consumer."""
    executors = sys.modules.get("concurrent.futures.process")
    workers = {*getattr(concurrent.futures.thread, "_threads_queues", ()), *getattr(executors, "_threads_wakeups", ())}
    own = threading.main_thread(), threading.current_thread()
    return any(not (thread.daemon or thread in own or thread in workers) for thread in threading.enumerate())


def _at_exit() -> None:
    if _pump is not None:
        _pump.end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
# Called in the reverse order: before executors end, which `atexit` is not. Those of processes register when they are imported.
with contextlib.suppress(ImportError):
    import concurrent.futures.process
_register: Callable[[Callable[[], None]], None] | None = getattr(threading, "_register_atexit", None)
if _register is not None:
    with contextlib.suppress(RuntimeError):  # the interpreter is about to end already
        _register(_before_the_end)
