"""What every language restates of the core is what ``bindings-common/table.json`` says; a Rust test holds that to the core."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import retryrmq
from retryrmq import _listeners, _native, errors, events, options

TABLE: dict[str, Any] = json.loads((Path(__file__).parent / "table.json").read_text())


def test_options() -> None:
    # What runs in Python alone is no option of the core.
    ours = retryrmq.ConsumerOptions.__optional_keys__ - {"middleware", "invalid_body"}
    assert ours == set(TABLE["options"]) - {"queue"}
    usual = _native.Options('{"queue": "orders"}')
    assert TABLE["options"]["prefetch"] == str(usual.prefetch)
    assert TABLE["options"]["concurrency"] == str(usual.concurrency)
    assert TABLE["options"]["retry"] == _native.default_policy()
    share, window, duration = _native.PAUSE
    assert TABLE["options"]["pause"] == f"off; {share}, {window}, {duration}"
    for option in ours - {"on_event", "fatal"}:
        with pytest.raises(TypeError, match=option.rstrip("s")):
            options.plan("orders", None, {option: object()})  # type: ignore[misc]


def test_events() -> None:
    ours = {name: [field.name for field in dataclasses.fields(kind)] for name, kind in events._KINDS.items()}
    assert ours == TABLE["events"]
    assert TABLE["events_waiting"] == _listeners.MAX_EVENTS


def test_codes() -> None:
    ours = {
        kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RetryRmqError)
    }
    assert ours - {"error"} == set(TABLE["codes"])


def test_reasons() -> None:
    said = re.findall(
        r"``([a-z-]+)``", (Path(events.__file__)).read_text().split("class Parked")[1].split("class Rejected")[0]
    )
    assert set(said) == set(TABLE["reasons"])
