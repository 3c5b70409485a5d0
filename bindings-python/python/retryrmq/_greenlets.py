"""Programs under gevent or eventlet, where threads, locks and events are those of greenlets: how to wait there for the native half.

The native half blocks a thread, and with it all its greenlets. So only the dispatcher of notifications waits for it, for a file descriptor, which both libraries can
do; everybody else waits for the dispatcher, with locks and events that the library has patched.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

#: Waits until a file descriptor is readable, for at most this many seconds. The other greenlets run meanwhile.
WaitReadable = Callable[[int, float], None]


def wait_readable() -> WaitReadable | None:
    """How to wait where threads are greenlets; ``None`` where they are threads."""
    # Either may be half imported, by another thread.
    is_patched: Any = getattr(sys.modules.get("gevent.monkey"), "is_module_patched", None)
    if is_patched is not None and is_patched("threading"):
        return _in_gevent
    is_patched = getattr(sys.modules.get("eventlet.patcher"), "is_monkey_patched", None)
    if is_patched is not None and is_patched("thread"):
        return _in_eventlet
    return None


def is_main_thread() -> bool:
    """Whether this is the main thread, or one of its greenlets: only it gets signals."""
    if wait_readable() is None:
        return threading.current_thread() is threading.main_thread()
    # The patched functions compare greenlets. Elsewhere than on Linux the numbers tell nothing, and greenlets are hardly in another thread.
    return sys.platform != "linux" or threading.get_native_id() == os.getpid()


def is_forwarded_ctrl_c(error: BaseException) -> bool:
    """Whether the error is Ctrl-C in a greenlet of ours by chance. Then it was passed on to the main greenlet."""
    if not isinstance(error, KeyboardInterrupt) or wait_readable() is None or not is_main_thread():
        return False
    _raise_in_main(error)
    return True


def _raise_in_main(error: BaseException) -> None:
    """Raises Ctrl-C in the main greenlet. Python raises it in whichever greenlet runs, and those of the library must go on."""
    greenlet: Any = importlib.import_module("greenlet")
    current = main = greenlet.getcurrent()
    while main.parent is not None:
        main = main.parent
    if main is current:
        raise error
    if wait_readable() is _in_gevent:
        gevent: Any = importlib.import_module("gevent")
        gevent.get_hub().loop.run_callback(main.throw, type(error), error)
    else:
        hubs: Any = importlib.import_module("eventlet.hubs")
        hubs.get_hub().schedule_call_global(0, main.throw, type(error), error)


def _in_gevent(file: int, seconds: float) -> None:
    socket: Any = importlib.import_module("gevent.socket")
    with contextlib.suppress(TimeoutError):
        socket.wait_read(file, seconds)


def _in_eventlet(file: int, seconds: float) -> None:
    hubs: Any = importlib.import_module("eventlet.hubs")
    with contextlib.suppress(TimeoutError):
        hubs.trampoline(file, read=True, timeout=seconds, timeout_exc=TimeoutError)
