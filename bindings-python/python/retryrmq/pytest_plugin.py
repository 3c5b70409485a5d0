"""The pytest fixture ``simulate_app``; pytest finds it by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def simulate_app() -> Callable[..., Any]:
    """:func:`retryrmq.testing.simulate_blocking`: ``result = simulate_app(app, "orders", [b"…"])``."""
    from .testing import simulate_blocking

    return simulate_blocking
