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
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from . import _lines, _logs, _native, events
from ._asking import Asker
from ._attempts import return_the_unstarted
from ._listening import Mailbox
from ._native import Message, Operation, Question, Subscription

logger = _logs.logger("retryrmq")

#: How often the event loops of consumers are checked, in seconds.
_LOOK = 1.0
#: How long the end of the interpreter waits for listeners, in seconds.
_PATIENCE = 2.0


class _Awaited(NamedTuple):
    loop: asyncio.AbstractEventLoop
    done: Callable[[Operation], None]
    operation: Operation
    #: Called on this thread if the loop was closed first.
    lost: Callable[[], None]


class Workers(Protocol):
    """Handlers at work on an event loop."""

    def let_go(self) -> None:
        """The event loop was closed: what its handlers hold goes back to its queue."""


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
        self._tickets = itertools.count(1)
        self._awaited: dict[int, _Awaited] = {}
        self._mailboxes: dict[int, Mailbox] = {}
        #: Threads that run a consumer.
        self._staying: list[threading.Thread] = []
        #: Mailboxes that end with an operation, by its ticket.
        self._last_of: dict[int, int] = {}
        self._homes: dict[int, _Home] = {}
        #: The functions that give credentials, as long as they can be asked.
        self._askers: dict[int, Asker] = {}
        #: Subscriptions that must end before the interpreter does, with the messages of each that no handler has begun.
        self.running: weakref.WeakKeyDictionary[Subscription, weakref.ref[deque[Message]]] = weakref.WeakKeyDictionary()
        self._thread = threading.Thread(target=self._run, name="retryrmq-news", daemon=True)
        self._thread.start()

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

    def _run(self) -> None:
        while True:
            news = self.native.news(_LOOK)
            if news is None:
                return
            _surely(self._look_at_homes)
            _surely(self._look_at_askers)
            # In a separate call: variables of this loop would keep objects alive until the next news.
            _surely(self._handle, *news)
            del news

    def _handle(
        self,
        finished: list[int],
        told: list[tuple[int, str]],
        asked: list[tuple[int, Question | None]],
        lines: list[tuple[str, int, str]],
        missed: int,
    ) -> None:
        # Before the ends of operations: a listener must have all events of a consumer before its end is known.
        for number, row in told:
            self._tell(number, row)
        for number, question in asked:
            _surely(self._ask, number, question)
        for loop, all_awaited in self._awaited_by_loop(finished).items():
            _surely(_finish_on, loop, all_awaited)
        for module, level, text in lines:
            _lines.write(f"retryrmq.{module}" if module else "retryrmq", level, "%s", text)
        if missed:
            _lines.write("retryrmq", logging.WARNING, "%d events were dropped: their listeners are too slow", missed)

    def _awaited_by_loop(self, finished: list[int]) -> dict[asyncio.AbstractEventLoop, list[_Awaited]]:
        loops: dict[asyncio.AbstractEventLoop, list[_Awaited]] = {}
        for ticket in finished:
            if ticket in self._last_of:
                self.unlisten(self._last_of.pop(ticket))
                continue
            awaited = self._awaited.pop(ticket, None)
            if awaited is not None:
                loops.setdefault(awaited.loop, []).append(awaited)
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
        except BaseException as error:  # this thread must go on, or nothing would ever be answered again
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
                subscription.wait_closed().wait(5.0)

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
    """Runs a step. The thread goes on whatever the step raises, or nothing would ever be answered again."""
    try:
        step(*args)
    except BaseException as error:
        _lines.write("retryrmq", logging.ERROR, "news were lost; this is a bug of retryrmq", exc_info=error)


def _finish_on(loop: asyncio.AbstractEventLoop, all_awaited: list[_Awaited]) -> None:
    try:
        loop.call_soon_threadsafe(_finish, all_awaited)
    except RuntimeError:  # closed
        for awaited in all_awaited:
            awaited.lost()


def _finish(all_awaited: list[_Awaited]) -> None:
    # Emptied: the thread that fetched the news may keep the list for long.
    awaited_here = all_awaited[:]
    all_awaited.clear()
    for awaited in awaited_here:
        awaited.done(awaited.operation)


_pump: Pump | None = None
_making = threading.Lock()


def pump() -> Pump:
    """This process's pump."""
    global _pump
    found = _pump
    if found is None:
        with _making:
            found = _pump
            if found is None:
                found = _pump = Pump()
    _logs.follow_levels()
    return found


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
