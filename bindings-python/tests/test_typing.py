"""What type checkers and those who read annotations at run time find."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import retryrmq
import retryrmq.testing


def functions() -> list[object]:
    found: list[object] = []
    for name in [*retryrmq.__all__, "list"]:
        public = getattr(retryrmq, name)
        if inspect.isclass(public):
            found += [public, *(member for _, member in inspect.getmembers(public, inspect.isfunction))]
        elif inspect.isfunction(public):
            found.append(public)
    fake = retryrmq.testing.FakeClient
    return [
        *found,
        retryrmq.testing.simulate,
        retryrmq.testing.simulate_blocking,
        fake.deliver,
        fake.replace,
        fake.published.fget,
    ]


@pytest.mark.parametrize("function", functions(), ids=lambda function: getattr(function, "__qualname__", "?"))
def test_annotations_can_be_resolved(function: object) -> None:
    if not str(getattr(function, "__module__", "retryrmq")).startswith("retryrmq"):
        pytest.skip("not ours")
    typing.get_type_hints(function)


TYPED = """
import asyncio

import retryrmq

app = retryrmq.App()
policy: retryrmq.Policy = retryrmq.list("1s")
handler: retryrmq.Handler = print
strategy: retryrmq.Strategy = "native"
delay: retryrmq.Duration = "5s"
options: retryrmq.ConsumerOptions = {"dlx": True, "strategy": strategy}
queue: retryrmq.WorkQueue = {"x-max-priority": 10, "x-queue-mode": "lazy", "x-single-active-consumer": True}
message: retryrmq.PublishOptions = {"delay": delay}


@app.consume("a", **options)
def with_default(msg: retryrmq.Message, spare: int = 5) -> None: ...


@app.consume("b")
async def coroutine(order: retryrmq.Message) -> int:
    return 5


def number(msg: retryrmq.Message) -> int:
    return 5


def old_login() -> tuple[str, str]:
    return "maria", "old"


async def login() -> retryrmq.Login:
    return retryrmq.Login("maria", "new", expires_in="1h")


def number_of_logins() -> int:
    return 5


async def connecting() -> retryrmq.Client:
    credentials: retryrmq.Credentials = login
    retryrmq.App(credentials=credentials)
    retryrmq.connect_blocking(credentials=old_login)
    retryrmq.connect_blocking(credentials=lambda: login())
    retryrmq.connect_blocking(credentials=number_of_logins)  # WRONG
    async with retryrmq.connect(credentials=login) as client:
        client.trouble()
    await asyncio.create_task(retryrmq.connect())
    return await retryrmq.connect()


async def forward(client: retryrmq.Client, msg: retryrmq.Message) -> None:
    await client.publish("orders", msg.body, message_id=msg.message_id)
    client.blocking.publish("orders", msg.body, message_id=msg.message_id)
    await client.publish("orders", msg.body, message_id=5)  # WRONG


connected: retryrmq.Client = asyncio.run(retryrmq.connect())


def both(client: retryrmq.Client, blocking: retryrmq.BlockingClient) -> None:
    client.consume("orders", number, dlx=True)
    client.consume("orders", coroutine)
    client.consume("orders", number, dlx="yes")  # WRONG
    client.consume("orders", number, dlx=True, work_queue=queue)
    client.consume("orders", number, dlx=True, work_queue={})
    client.consume("orders", number, dlx=True, work_queue="existing")
    client.consume("orders", number, dlx=True, work_queue="stream")  # WRONG
    client.consume("orders", number, dlx=True, work_queue={"x-max-priority": 1.5})  # WRONG
    blocking.consume("orders", number).run()
    blocking.consume("orders", lambda msg: print(msg.body)).run()
    blocking.consume("orders", lambda msg: print(msg.colour)).run()  # WRONG


@app.consume("c")  # WRONG
def too_few() -> None: ...


@app.consume("d")  # WRONG
def other(order: int, msg: int) -> None: ...


@app.consume("e", invalid_body="retry")
async def body(order: dict[str, int]) -> None: ...


@app.consume("f", invalid_body="drop")  # WRONG
def both_of_them(orders: list[int], msg: retryrmq.Message) -> None: ...


async def around(msg: retryrmq.Message, call_next: retryrmq.CallNext) -> int:
    await call_next(msg)
    return 5


def stamped(publish: retryrmq.Publishing, call_next: retryrmq.PublishNext) -> None:
    publish.headers["x-request"] = "7"
    publish.routing_key = "8"  # WRONG
    call_next(publish)


@app.consume("h", batch=100, batch_wait="50ms")
async def batches(messages: list[retryrmq.Message]) -> list[Exception | None]:
    return [None for _ in messages]


async def around_batches(messages: list[retryrmq.Message], call_next: retryrmq.BatchCallNext) -> object:
    return await call_next(messages)


def surrounded() -> None:
    retryrmq.App().consume("i", batch=100, middleware=[around_batches])(batches)
    retryrmq.App(middleware=[around_batches])  # WRONG
    retryrmq.App(middleware=[around, retryrmq.DualMiddleware(around, around)], publish_middleware=[stamped])
    retryrmq.App(middleware=[stamped])  # WRONG
    retryrmq.App().consume("g", middleware=[around])(body)


def bodies(client: retryrmq.Client, blocking: retryrmq.BlockingClient) -> None:
    client.consume("e", body, dlx=True)
    client.consume("f", both_of_them)
    client.consume("d", other)  # WRONG
    client.consume("g").stats()
    blocking.consume("f", both_of_them).run()
    blocking.consume("c", too_few)  # WRONG
"""

WRONG = [number for number, line in enumerate(TYPED.splitlines(), 1) if "WRONG" in line]


@pytest.mark.timeout(600)
def test_types_say_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(retryrmq.__file__).parents[1]
    if home.name != "site-packages":  # a checkout, which mypy would not find by itself
        monkeypatch.setenv("MYPYPATH", str(home))
    api = pytest.importorskip("mypy.api")
    (tmp_path / "typed.py").write_text(TYPED)
    cache = str(tmp_path / "cache")
    said, _, _ = api.run(["--strict", "--no-error-summary", "--cache-dir", cache, str(tmp_path / "typed.py")])
    assert sorted({int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line}) == WRONG, said


@pytest.mark.timeout(600)
def test_pyright_says_the_same(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    home = Path(retryrmq.__file__).parents[1]
    (tmp_path / "typed.py").write_text(TYPED)
    settings = {"include": ["typed.py"], "typeCheckingMode": "strict", "extraPaths": [str(home)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    said = json.loads(subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, check=False).stdout)
    found = [it for it in said["generalDiagnostics"] if it["severity"] == "error"]
    assert sorted({it["range"]["start"]["line"] + 1 for it in found}) == WRONG, found


@pytest.mark.timeout(600)
def test_the_native_half_is_what_its_stub_says() -> None:
    pytest.importorskip("mypy")
    home = Path(retryrmq.__file__).parents[1]
    environment = {
        **os.environ,
        **({} if home.name == "site-packages" else {"MYPYPATH": str(home), "PYTHONPATH": str(home)}),
    }
    command = [sys.executable, "-m", "mypy.stubtest", "retryrmq._native", "--ignore-positional-only"]
    checked = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
