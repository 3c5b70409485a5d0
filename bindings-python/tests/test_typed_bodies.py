"""Handlers that take the body as a value of their own type."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union

import msgspec
import pydantic
import pytest
import retryrmq
from conftest import Broker, eventually
from retryrmq import outcome
from retryrmq.testing import Simulated, simulate_blocking
from typing_extensions import TypedDict

if TYPE_CHECKING:
    from datetime import datetime as OnlyForCheckers  # noqa: N812

    from retryrmq import Message

#: What no record and no log may contain.
SECRET = "4111-1111"


class Item(pydantic.BaseModel):
    sku: str


class Order(pydantic.BaseModel):
    id: int
    items: list[Item] = []


@dataclasses.dataclass
class Plain:
    id: int


class Struct(msgspec.Struct):
    id: int


class Typed(TypedDict):
    id: int


def simulated(handler: Callable[..., Any], *bodies: str | bytes, **options: Any) -> Simulated:
    app = retryrmq.App()
    app.consume("orders", dlx=True, retry="fixed(1s, retries=1)", **options)(handler)
    return simulate_blocking(app, "orders", bodies)


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        (Order, '{"id": 7, "items": [{"sku": "a"}]}', Order(id=7, items=[Item(sku="a")])),
        (Plain, '{"id": 7}', Plain(7)),
        (Struct, '{"id": 7}', Struct(7)),
        (Typed, '{"id": 7}', {"id": 7}),
        (list[Order], '[{"id": 7}]', [Order(id=7)]),
        (dict[str, Struct], '{"a": {"id": 7}}', {"a": Struct(7)}),
        (Annotated[int, msgspec.Meta(gt=0)], "7", 7),
        (dict, '{"id": 7}', {"id": 7}),
        (dict[str, Any], '{"id": 7}', {"id": 7}),
        (list, "[7]", [7]),
        (int, "7", 7),
        (str, '"7"', "7"),
        (Order | None, "null", None),
        (Literal["a", "b"], '"a"', "a"),
    ],
)
def test_the_annotation_decides(kind: Any, body: str, value: object) -> None:
    seen: list[object] = []

    def handle(order) -> None:  # type: ignore[no-untyped-def]
        seen.append(order)

    def handle_both(order, msg) -> None:  # type: ignore[no-untyped-def]
        seen.append(order)
        assert msg.text() == body

    async def on_loop(order) -> None:  # type: ignore[no-untyped-def]
        seen.append(order)

    async def on_loop_both(order, msg) -> None:  # type: ignore[no-untyped-def]
        handle_both(order, msg)

    for handler in (handle, handle_both, on_loop, on_loop_both):
        handler.__annotations__["order"] = kind
        assert [end.became for end in simulated(handler, body).ends] == ["acked"]
    assert seen == [value] * 4 and {type(it) for it in seen} == {type(value)}


def test_annotations_may_be_postponed_and_local() -> None:
    class Local(pydantic.BaseModel):
        id: int

    seen: list[object] = []

    class Service:
        def handle(self, order: Local, msg: Message) -> None:
            seen.append((order.id, msg.attempt))

        def __call__(self, orders: list[Local]) -> None:
            seen.append([order.id for order in orders])

    service = Service()
    assert simulated(service.handle, '{"id": 7}').acked
    assert simulated(service, '[{"id": 8}]').acked
    assert seen == [(7, 1), [8]]


def test_a_message_is_still_a_message() -> None:
    def quoted(msg: Message) -> None:
        msg.json()

    def imported(msg: retryrmq.Message | None) -> None: ...
    def bare(msg) -> None: ...  # type: ignore[no-untyped-def]
    def anything(msg: Any, spare: int = 5) -> None: ...
    def thing(msg: object) -> None: ...
    def arguments(*args: Any) -> None: ...
    def unresolved_spare(msg: Message, spare: OnlyForCheckers | None = None) -> None: ...
    def bare_and_spare(msg, spare: OnlyForCheckers | None = None) -> None: ...  # type: ignore[no-untyped-def]

    for handler in (
        *(quoted, imported, bare, anything, thing, arguments, unresolved_spare, bare_and_spare),
        *(lambda msg: None, print),
    ):
        app = retryrmq.App()
        app.consume("orders")(handler)
        assert app._plans[0].call is handler


def test_what_is_invalid_is_parked_at_once_without_its_values(broker: Broker) -> None:
    queue = broker.queue()

    class Payment(pydantic.BaseModel):
        id: int
        card: Literal["visa"]

    def handle(payment: Payment) -> None:
        raise AssertionError("it is called")

    with retryrmq.connect_blocking(broker.url) as client:
        with client.consume(queue, handle, dlx=True) as consumer:
            client.publish(queue, json.dumps({"id": "x", "card": SECRET}), message_id="7")
            eventually("it is parked", lambda: consumer.stats().parked == 1)
        with client.parked(queue) as parked:
            (record,) = parked
            assert (record.reason, record.attempts, record.error_type) == ("undecodable", 1, "ValidationError")
            assert record.error == (
                "id: Input should be a valid integer, unable to parse string as an integer; card: Input should be 'visa'"
            )
            assert record.stack is None
            assert SECRET not in str(record.message.headers)
            parked.drop(record)


Circle = pydantic.create_model("Circle", kind=(Literal["circle"], ...))
Square = pydantic.create_model("Square", kind=(Literal["square"], ...))
Shape = Annotated[Circle | Square, pydantic.Field(discriminator="kind")]


class Kind(msgspec.Struct, tag="payment"):
    card: Literal["visa"]


NOT_UTF8 = b'"\xff"'


def said_of_not_utf8() -> tuple[str, str]:
    """The error's type and text: msgspec has errors of its own for this since 0.23, and before it Python's."""
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)) as raised:
        msgspec.json.decode(NOT_UTF8, type=str)
    return raised.type.__name__, str(raised.value)


@pytest.mark.parametrize(
    ("kind", "body", "error_type", "said"),
    [
        (Order, "{}", "ValidationError", "id: Field required"),
        (Order, '{"id": 7, "items": [{}]}', "ValidationError", "items.0.sku: Field required"),
        (Order, SECRET, "ValidationError", "Invalid JSON: trailing characters at line 1 column 5"),
        (Order, b"\xff", "ValidationError", "Invalid JSON: expected value at line 1 column 1"),
        (
            Shape,
            f'{{"kind": "{SECRET}"}}',
            "ValidationError",
            "Input tag does not match any of the expected tags: 'circle', 'square'",
        ),
        (Struct, f'{{"id": "{SECRET}"}}', "ValidationError", "id: Expected `int`, got `str`"),
        (Kind, f'{{"type": "payment", "card": "{SECRET}"}}', "ValidationError", "card: Invalid enum value"),
        (Kind, f'{{"type": "{SECRET}"}}', "ValidationError", "type: Invalid value"),
        (list[Struct], '[{"id": 1}, {}]', "ValidationError", "[1]: Object missing required field `id`"),
        (Struct, "{", "DecodeError", "Input data was truncated"),
        (Annotated[str, msgspec.Meta(max_length=9)], NOT_UTF8, *said_of_not_utf8()),
        (dict, "[7]", "ValidationError", "expected a dict, got list"),
        (dict, "no", "JSONDecodeError", "Expecting value: line 1 column 1 (char 0)"),
        (dict, "[" * 100_000, "RecursionError", "maximum recursion depth exceeded"),
    ],
)
def test_the_error_names_the_field_and_no_value(kind: Any, body: Any, error_type: str, said: str) -> None:
    def handle(order) -> None: ...  # type: ignore[no-untyped-def]

    handle.__annotations__["order"] = kind
    result = simulated(handle, body)
    (end,) = result.parked
    assert end.reason == "undecodable" and len(result.attempts) == 1
    error = result.attempts[0].error
    assert isinstance(error, retryrmq.Undecodable)
    assert str(error).startswith(said) and SECRET not in repr(vars(error)) + str(error)
    assert error.__cause__ is None and error.__context__ is None, "the validator's error quotes the body"
    assert end.message is not None and end.message.headers["x-retry-error-type"] == error_type


def test_many_errors_are_cut() -> None:
    def handle(orders: list[Order]) -> None: ...

    error = simulated(handle, json.dumps([{}] * 30)).attempts[0].error
    assert str(error).endswith("9.id: Field required; and 20 more")


def test_an_invalid_body_can_be_retried() -> None:
    def handle(order: Order) -> None: ...

    result = simulated(handle, "{}", invalid_body="retry")
    assert [attempt.became for attempt in result.attempts] == ["retried", "parked"]
    assert result.parked[0].reason == "exhausted"
    matched = simulated(
        handle,
        "{}",
        invalid_body="retry",
        rules=[retryrmq.Rule(retryrmq.fixed("5s", retries=3), error="ValidationError")],
    )
    assert len(matched.attempts) == 4
    base = simulated(
        handle, "{}", invalid_body="retry", rules=[retryrmq.Rule(retryrmq.fixed("5s", retries=3), error=ValueError)]
    )
    assert len(base.attempts) == 4, "a rule also matches its base classes"


def test_an_error_of_a_validator_that_is_no_refusal_is_a_failed_attempt() -> None:
    class Looked(pydantic.BaseModel):
        id: int

        @pydantic.field_validator("id")
        @classmethod
        def look(cls, value: int) -> int:
            raise ConnectionError("the database is restarting")

    def handle(order: Looked) -> None: ...

    assert simulated(handle, '{"id": 7}').parked[0].reason == "exhausted"


def test_a_handler_can_say_it_itself() -> None:
    def own(msg: Message) -> None:
        raise retryrmq.Undecodable("no schema 7")

    def caused(msg: Message) -> None:
        try:
            msg.json()
        except ValueError as error:
            raise retryrmq.Undecodable() from error

    def returned(msg: Message) -> Any:
        return retryrmq.Undecodable()

    for handler, error_type, said in (
        (own, None, "no schema 7"),
        (caused, "JSONDecodeError", "Expecting value: line 1 column 1 (char 0)"),
        (returned, None, "the handler cannot read the body"),
    ):
        (end,) = simulated(handler, "no").parked
        assert end.reason == "undecodable" and end.message is not None
        assert end.message.headers.get("x-retry-error-type") == error_type
        assert end.message.last_error == said
    with pytest.raises(TypeError, match=r"`raise Undecodable\(\) from error`"):
        retryrmq.Undecodable(ValueError("no"))  # type: ignore[arg-type]
    for error in (retryrmq.Undecodable("why"), outcome.invalid_body("id: no", "ValidationError", ["ValueError"], True)):
        for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            assert (str(again), vars(again)) == (str(error), vars(error))


def test_middleware_sees_an_invalid_body() -> None:
    seen: list[str] = []

    async def told(msg: Message, call_next: retryrmq.CallNext) -> Any:
        try:
            return await call_next(msg)
        except retryrmq.Undecodable as error:
            seen.append(str(error))
            raise

    async def handle(order: Order) -> None: ...

    assert simulated(handle, "{}", middleware=[told]).parked[0].reason == "undecodable"
    assert seen == ["id: Field required"]


def unresolved(order: OnlyForCheckers) -> None: ...
def raw(order: bytes) -> None: ...
def swapped(order, msg: Message) -> None: ...  # type: ignore[no-untyped-def]
def two(order: Order, customer: Order) -> None: ...
def three(order: Order, msg: Message, other: int) -> None: ...


class Odd: ...


def unknown(order: Odd) -> None: ...
def takes_a_message(msg: Message) -> None: ...


@pytest.mark.parametrize(
    ("handler", "options", "said"),
    [
        (unresolved, {}, r"`OnlyForCheckers` of `order` cannot be resolved.*outside of `if TYPE_CHECKING`"),
        (raw, {}, "`order: retryrmq.Message`, and use its `body`"),
        (swapped, {}, "gets the body as `order`, which needs an annotation"),
        (two, {}, "`customer` of the handler is its message: annotate it as `retryrmq.Message`"),
        (three, {}, "is called with the body and the message: missing a required argument: 'other'"),
        (unknown, {}, "cannot decode a body into"),
        (
            takes_a_message,
            {"invalid_body": "retry"},
            "`invalid_body` needs a handler whose first parameter is annotated",
        ),
        (two, {"invalid_body": "drop"}, "must be 'park' or 'retry', not 'drop'"),
    ],
)
def test_what_cannot_work_is_refused(handler: Any, options: Any, said: str) -> None:
    with pytest.raises(retryrmq.RetryRmqError, match=said):
        retryrmq.App().consume("orders", **options)(handler)


def test_without_a_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(order: Plain) -> None: ...
    def plain(order: dict[str, Any]) -> None: ...

    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert simulated(handle, '{"id": "7"}').parked[0].reason == "undecodable", "by msgspec, which is strict"
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(
        retryrmq.InvalidTypeError,
        match="`Plain` as the type of a body needs pydantic 2 or msgspec; `pip install pydantic`",
    ):
        retryrmq.App().consume("orders")(handle)
    assert simulated(plain, '{"id": 7}').acked


def test_nothing_is_imported_that_is_not_needed() -> None:
    program = """
import sys
import retryrmq
app = retryrmq.App()
@app.consume("orders")
def handle(msg: retryrmq.Message): ...
@app.consume("others")
def other(order: dict): ...
print([name for name in ("pydantic", "msgspec", "opentelemetry", "annotationlib") if name in sys.modules])
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_on_an_event_loop_of_a_broker(broker: Broker) -> None:
    queue = broker.queue()
    seen: list[object] = []
    app = retryrmq.App(broker.url)

    @app.consume(queue, dlx=True)
    async def handle(order: Order, msg: Message) -> None:
        seen.append((order.id, msg.message_id))
        app.stop()

    async def main() -> None:
        async with app:
            await app.publish(queue, '{"id": 7}', message_id="a")
            await app.wait_closed()

    asyncio.run(main())
    assert seen == [(7, "a")]


def test_types_within_types_may_be_text() -> None:
    class Local(pydantic.BaseModel):
        id: int

    seen: list[object] = []

    # As without `from __future__ import annotations`.
    def handle(order) -> None:  # type: ignore[no-untyped-def]
        seen.append(order)

    for kind, body in (
        (Optional["Local"], '{"id": 1}'),
        (list["Local"], '[{"id": 2}]'),
        (dict[str, list["Order"]], '{"a": [{"id": 3}]}'),
        (Annotated[list["Local"], "orders"], '[{"id": 4}]'),
        (list["Local"] | None, "[]"),
        (Union["Order", Literal["none"]], '"none"'),
    ):
        handle.__annotations__["order"] = kind
        assert simulated(handle, body).acked, kind
    assert seen == [Local(id=1), [Local(id=2)], {"a": [Order(id=3)]}, [Local(id=4)], [], "none"]

    handle.__annotations__["order"] = Optional["Message"]  # only type checkers import it
    assert simulated(handle, "no JSON").acked
    assert isinstance(seen[-1], retryrmq.Message)


def test_a_type_within_a_type_that_does_not_exist_is_refused() -> None:
    class Incomplete(pydantic.BaseModel):
        items: list["Nowhere"]  # type: ignore[name-defined] # noqa: F821, UP037

    def handle(order) -> None: ...  # type: ignore[no-untyped-def]

    for kind, said in (
        (list["Nowhere"], "cannot be resolved"),  # type: ignore[name-defined] # noqa: F821
        (Optional["Nowhere"], "cannot be resolved"),  # type: ignore[name-defined] # noqa: F821
        (Incomplete, "pydantic cannot decode a body into `Incomplete`"),
    ):
        handle.__annotations__["order"] = kind
        with pytest.raises(retryrmq.InvalidTypeError, match=said):
            retryrmq.App().consume("orders")(handle)


def test_a_wrapper_that_names_its_parameter_gets_the_message() -> None:
    seen: list[object] = []

    def decoding(function: Callable[[Order], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def wrapper(msg) -> None:  # type: ignore[no-untyped-def]
            function(Order(id=len(msg.body)))

        return wrapper

    def passing(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> None:
            function(*args, **options)

        return wrapper

    def same_name(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def wrapper(order) -> None:  # type: ignore[no-untyped-def]
            function(order)

        return wrapper

    def handle(order: Order) -> None:
        seen.append(order.id)

    class Service:
        @passing
        def handle(self, order: Order) -> None:
            seen.append(order.id)

        @passing
        def __call__(self, order: Order) -> None:
            seen.append(order.id)

    for handler in (decoding(handle), passing(decoding(handle)), functools.partial(passing(decoding(handle)))):
        assert simulated(handler, "123").acked
    for handler in (
        *(passing(handle), same_name(handle), passing(passing(handle)), functools.partial(passing(handle))),
        *(Service().handle, Service()),
    ):
        assert simulated(handler, '{"id": 7}').acked
    assert seen == [3] * 3 + [7] * 6


@pytest.mark.parametrize(
    ("body", "error_type", "said"),
    [
        (b'\xef\xbb\xbf{"a": 1}', "JSONDecodeError", "BOM"),
        ('{"a": 1}'.encode("utf-16"), "UnicodeDecodeError", "invalid UTF-8 at byte 0"),
        ('{"a": 1}'.encode("utf-16-le"), "JSONDecodeError", ""),
        (b'{"a": "\xff"}', "UnicodeDecodeError", "invalid UTF-8 at byte 7"),
        (b'{"a": NaN}', "ValueError", "NaN is not JSON"),
        (b'{"a": -Infinity}', "ValueError", "-Infinity is not JSON"),
    ],
)
def test_a_dict_is_as_strict_as_a_model(body: bytes, error_type: str, said: str) -> None:
    def handle_dict(order: dict[str, Any]) -> None: ...
    def handle_msgspec(order: Annotated[dict[str, float | str], msgspec.Meta()]) -> None: ...

    (attempt,) = simulated(handle_dict, body).attempts
    assert isinstance(attempt.error, retryrmq.Undecodable) and said in str(attempt.error)
    assert outcome.classify(attempt.error)[2] == error_type
    (attempt,) = simulated(handle_msgspec, body).attempts
    assert isinstance(attempt.error, retryrmq.Undecodable)
