"""The work of every peer in Python: the same handler, called as the peer's own documentation calls one.

Each attempt is written down as a line of 21 bytes in a file per order, so that attempts are counted across processes and kills.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

URL = os.environ["PEER_URL"]
QUEUE = "work"
DELAY_MS = int(os.environ["PEER_DELAY_MS"])
RETRIES = int(os.environ["PEER_RETRIES"])
PREFETCH = 5
LINE = 21


class CardDeclinedError(Exception):
    """Why an order fails; what an operator wants to read afterwards."""


def handle(order: dict[str, Any] | bytes | str) -> None:
    """Fails as often as the order says; -1: always."""
    if not isinstance(order, dict):
        order = json.loads(order)
    file = os.open(os.path.join(os.environ["PEER_LOG"], order["id"]), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        os.write(file, f"{time.time():020.6f}\n".encode())
        attempt = os.fstat(file).st_size // LINE
    finally:
        os.close(file)
    time.sleep(order.get("takes", 0))
    if order["fail"] < 0 or attempt <= order["fail"]:
        raise CardDeclinedError("card 4711 was declined")
