"""What is asked of every peer. Each question returns cells of the tables in docs/comparison.md, as words that are the same in every
run; nothing is a measurement."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from peers import Peer
from stage import Broker, Stage, stage, until

Cells = dict[str, str]
#: Does not apply: there is no such thing with this peer.
NONE = "–"
#: More attempts than any policy here asks for: a loop that nothing ends.
ENDLESS = 30
REASON = "card 4711 was declined"


class NotSeenError(Exception):
    """The question has no answer, because what it needs did not happen."""


def begin(on: Stage) -> None:
    if not on.start():
        raise NotSeenError(
            f"{on.peer.title} does not consume: {(on.folder / 'output').read_text(errors='replace')[-2000:]}"
        )
    on.bind()


def first(on: Stage, order: str = "a") -> float:
    """When its first attempt began."""
    if not until(lambda: on.attempts(order)):
        raise NotSeenError(
            f"{on.peer.title} was never called: {(on.folder / 'output').read_text(errors='replace')[-2000:]}"
        )
    return on.attempts(order)[0]


def quiet(on: Stage, seconds: float, order: str = "a") -> int:
    """How many attempts there are when none came for so long, or when they have no end."""
    count, since = len(on.attempts(order)), time.monotonic()
    while time.monotonic() - since < seconds and count < ENDLESS:
        time.sleep(0.1)
        if (now := len(on.attempts(order))) != count:
            count, since = now, time.monotonic()
    return count


def fails_once(broker: Broker, peer: Peer) -> Cells:
    """It fails once, with others behind it."""
    delay = 2.0
    with stage(broker, peer, delay_ms=2000) as on:
        begin(on)
        on.kill()
        # All are in the queue before the first is handled, so that they are behind it.
        others = [f"n{number}" for number in range(60 * peer.concurrency)]
        on.publish({"id": "a", "fail": 1}, *({"id": other, "fail": 0, "takes": 0.1} for other in others))
        on.start()
        began = first(on)
        until(lambda: all(on.attempts(other) for other in others))
        quiet(on, 4)
        mine = on.attempts("a")
        seen = sorted(at for other in others for at in on.attempts(other)[:1])
        copies = on.look("audit")
    if len(mine) == 1:
        cells = {"comes back": "no", "place": NONE}
    else:
        behind = [at for at in seen if at > mine[1]]
        if not [at for at in seen if at > began + delay]:
            raise NotSeenError("the neighbours were done before the retry was due")
        cells = {
            "comes back": "at once" if mine[1] - mine[0] < delay * 0.9 else "after the delay",
            "place": "head" if len(behind) > 2 * peer.concurrency + 8 else "tail",
        }
    cells["deliveries"] = str(len(mine))
    if not copies or not copies[0]:
        cells["seen by others"] = NONE  # it comes by the default exchange, which nobody else can be bound to
    else:
        cells["seen by others"] = "again" if copies and copies[0] > len(others) + 1 else "no"
    return cells


def neighbours(broker: Broker, peer: Peer) -> Cells:
    """Ten fail, twice as many as the prefetch; are those behind them handled meanwhile?"""
    with stage(broker, peer, delay_ms=20_000) as on:
        begin(on)
        on.kill()
        others = [f"n{number}" for number in range(5)]
        on.publish(*({"id": f"a{n}", "fail": -1} for n in range(10)), *({"id": other, "fail": 0} for other in others))
        on.start()
        began = first(on, "a0")
        until(lambda: all(on.attempts(other) for other in others), max(0.1, began + 19 - time.time()))
        done = sum(bool(on.attempts(other)) for other in others)
    return {"neighbours": "go on" if done == len(others) else "wait"}


def worker_killed(broker: Broker, peer: Peer) -> Cells:
    """SIGKILL while a retry waits, and a new worker."""
    delay = 20.0
    with stage(broker, peer, delay_ms=20_000) as on:
        begin(on)
        on.publish({"id": "a", "fail": 1})
        began = first(on)
        time.sleep(3)
        if len(on.attempts("a")) > 1:
            return {"waits in": "nowhere", "worker killed": NONE}
        before = on.ready()
        on.kill()
        after = on.found()
        begin(on)
        until(lambda: len(on.attempts("a")) > 1, began + delay + 20 - time.time())
        quiet(on, 5)
        times = on.attempts("a")
        left = on.found()
    if before:
        waits = f"queue `{name_of(before)}`"
    elif after:
        waits = f"the worker, unacknowledged in `{name_of(after)}`"
    elif len(times) > 1 or left:
        waits = "queue `work`, held back"
    else:
        waits = "the worker"
    if len(times) == 1:
        became = f"left in `{name_of(left)}`" if left else "lost"
    else:
        became = "on time" if times[1] - began > delay * 0.95 else "early"
        if len(times) > 2:
            became += f", {len(times) - 1} times"
    return {"waits in": waits, "worker killed": became}


def name_of(queues: dict[str, int]) -> str:
    """Celery's queues have a number, which depends on the delay."""
    name = next(iter(queues))
    return "celery_delayed_…" if name.startswith("celery_delayed_") else name


def killed_at_work(broker: Broker, peer: Peer) -> Cells:
    """SIGKILL while the message is handled, and a new worker."""
    with stage(broker, peer, delay_ms=2000) as on:
        begin(on)
        on.publish({"id": "a", "fail": 0, "takes": 5})
        first(on)
        on.kill()
        begin(on)
        until(lambda: len(on.attempts("a")) > 1, 15)
        count = len(on.attempts("a"))
    return {"killed at work": "comes again" if count > 1 else "lost"}


def gives_up(broker: Broker, peer: Peer) -> Cells:
    """It fails always, with three retries."""
    with stage(broker, peer, delay_ms=1000) as on:
        begin(on)
        on.publish({"id": "a", "fail": -1})
        first(on)
        count = quiet(on, 8)
        if count >= ENDLESS:
            return {"attempts": "without end, at once", "afterwards": NONE, "record of the error": NONE}
        before, left = on.ready(), on.found()
        if not left:
            afterwards, record = "dropped", "no"
        else:
            record = read(on, next(iter(left)))
            afterwards = (
                f"in `{name_of(left)}`" if before else f"held by the worker, unacknowledged in `{name_of(left)}`"
            )
        times = on.attempts("a")
    hasty = count > 1 and times[-1] - times[0] < (count - 1) * 0.9
    attempts = f"{count}, at once" if hasty else str(count)
    return {"attempts": attempts, "afterwards": afterwards, "record of the error": record}


def read(on: Stage, queue: str) -> str:
    """Where the reason can be read in the message that is left."""
    with on.channel() as channel:
        _, properties, body = channel.basic_get(queue, auto_ack=False)
    headers = [name for name, value in (properties.headers or {}).items() if REASON in str(value)]
    if headers:
        return f"header `{headers[0]}`"
    return "in its body" if REASON in body.decode(errors="replace") else "no"


def count_survives(broker: Broker, peer: Peer) -> Cells:
    """It fails always, with three retries; SIGKILL while it waits for its second."""
    with stage(broker, peer, delay_ms=5000) as on:
        begin(on)
        on.publish({"id": "a", "fail": -1})
        first(on)
        if not until(lambda: len(on.attempts("a")) > 1, 20):
            return {"count after a kill": NONE}
        time.sleep(1)
        on.kill()
        if len(on.attempts("a")) >= ENDLESS:
            return {"count after a kill": NONE}
        begin(on)
        count = quiet(on, 14)
    word = {2: "lost", 4: "goes on"}.get(count, f"{count} attempts in all")
    return {"count after a kill": word}


def no_place(
    broker: Broker, peer: Peer, cell: str, delay_ms: int, harm: Callable[[Stage], None], mend: Callable[[Stage], None]
) -> Cells:
    """Where it would wait, it cannot."""
    if peer.waiting is None:
        return {cell: NONE}
    with stage(broker, peer, delay_ms=delay_ms) as on:
        begin(on)
        harm(on)
        on.publish({"id": "a", "fail": 1})
        first(on)
        until(lambda: len(on.attempts("a")) > 1, delay_ms / 1000 + 8)
        mend(on)
        on.kill()
        if on.start(45):
            until(lambda: len(on.attempts("a")) > 1, 20)
        kept = len(on.attempts("a")) > 1
        left = {} if kept else {name: count for name, count in on.found().items() if not on.has_filler(name)}
    return {cell: "kept" if kept else f"left in `{name_of(left)}`" if left else "lost"}


def place_missing(broker: Broker, peer: Peer) -> Cells:
    """Somebody deleted the queue in which it would wait."""
    return no_place(broker, peer, "place deleted", 2000, Stage.delete_waiting, lambda on: None)


def place_full(broker: Broker, peer: Peer) -> Cells:
    """The queue in which it would wait takes nothing more (``reject-publish``)."""
    return no_place(broker, peer, "place full", 20_000, Stage.fill_waiting, Stage.empty_waiting)


def existing_queue(broker: Broker, peer: Peer) -> Cells:
    """The queue is there already, declared by its publisher without anything special."""
    cells = {}
    for kind in ("classic", "quorum"):
        with stage(broker, peer, delay_ms=2000) as on:
            with on.channel() as channel:
                channel.queue_declare(
                    "work", durable=True, arguments={"x-queue-type": kind} if kind == "quorum" else {}
                )
            if on.start(30):
                word = "taken as it is"
            else:
                word = (
                    "refused (406)"
                    if on.said("PRECONDITION") or on.said("406") or on.said("inequivalent")
                    else "no consumer"
                )
        cells[f"existing {kind} queue"] = word
    return cells


def broker_restarted(broker: Broker, peers: list[Peer]) -> dict[str, Cells]:
    """All at once, so that one restart is enough."""
    found: dict[str, Cells] = {}
    with contextlib.ExitStack() as stages:
        playing = [stages.enter_context(stage(broker, peer, delay_ms=45_000)) for peer in peers]
        for on in playing:
            begin(on)
        for on in playing:
            on.publish({"id": "a", "fail": 1})
        for on in playing:
            first(on)
        time.sleep(4)
        waiting = [on for on in playing if len(on.attempts("a")) == 1]
        broker.restart()
        time.sleep(5)
        ended = {on.peer.folder for on in playing if on.ended()}
        for on in playing:
            if on.ended():
                on.kill()
                on.start()
        until(lambda: all(len(on.attempts("a")) > 1 for on in waiting), 90)
        back = {on.peer.folder for on in playing if on.consumers()}
        for on in playing:
            if on not in waiting:
                found[on.peer.folder] = {"broker restarted": NONE}
            elif len(on.attempts("a")) > 1:
                found[on.peer.folder] = {"broker restarted": "kept"}
            else:
                left = on.found()
                found[on.peer.folder] = {"broker restarted": f"left in `{name_of(left)}`" if left else "lost"}
            end = on.peer.folder in ended
            connects = "its process ends" if end else "yes" if on.peer.folder in back else "no"
            found[on.peer.folder]["connects again"] = connects
    return found


#: By name; each on its own stage.
QUESTIONS = {
    question.__name__: question
    for question in (
        fails_once,
        neighbours,
        worker_killed,
        killed_at_work,
        gives_up,
        count_survives,
        place_missing,
        place_full,
        existing_queue,
    )
}
