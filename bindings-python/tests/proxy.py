"""A way to a broker that can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.parse

#: Sockets that hold the ports of :func:`free_port`.
_held_ports: list[socket.socket] = []


def free_port() -> int:
    """A port on which nothing listens. It is nobody else's until the end of the process, but a :class:`Proxy` may listen on it."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _held_ports.append(holder)
    return int(holder.getsockname()[1])


class Proxy:
    """Passes bytes on between a client and the broker, until it is told to cut every connection."""

    def __init__(self, url: str, port: int = 0) -> None:
        address = urllib.parse.urlsplit(url)
        self._to = (address.hostname or "localhost", address.port or 5672)
        self._listener = socket.create_server(("127.0.0.1", port))
        port = self._listener.getsockname()[1]
        self.url = url.replace(f"{address.hostname}:{address.port}", f"127.0.0.1:{port}")
        self._open: set[socket.socket] = set()
        #: The clients' ends, in the order in which they came, and those of them whose bytes are held up.
        self._clients: list[socket.socket] = []
        self._held: set[socket.socket] = set()
        self._goes_on = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """Cuts what is connected now; how many sockets that were."""
        with self._lock:
            cut, self._open = self._open, set()
        for end in cut:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        return len(cut)

    @property
    def connections(self) -> int:
        """How many connections were made so far."""
        return len(self._clients)

    def hold_up(self, first: int) -> None:
        """Passes on nothing more that the clients of the first so many connections send, until :meth:`go_on`."""
        self._goes_on.clear()
        self._held = set(self._clients[:first])

    def go_on(self) -> None:
        """Passes on what was held up."""
        self._held = set()
        self._goes_on.set()

    def close(self) -> None:
        self.go_on()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection(self._to)
                except OSError:  # its client tries again
                    client.close()
                    continue
                with self._lock:
                    self._open |= {client, broker}
                    self._clients.append(client)
                for one, other in ((client, broker), (broker, client)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if one in self._held:
                    self._goes_on.wait()
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)
