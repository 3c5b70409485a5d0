"""Handlers whose first parameter has the type of the body: the message is decoded before they are called."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import re
import sys
import types
from collections.abc import Callable
from typing import Annotated, Any, ForwardRef, Literal, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

from ._native import Message
from ._signatures import checked_callable, is_async, name_of, signature_of
from .errors import InvalidOptionError, InvalidTypeError
from .outcome import described, invalid_body

#: How many invalid fields of a body are named.
_MAX_FIELDS = 10

_Decode = Callable[[bytes], Any]


class _InvalidBody(NamedTuple):
    """What is wrong with a body, without the body."""

    #: The name of the validator's error, and those of its base classes.
    error_type: str
    kinds: list[str]
    said: str


class _HandlerParameters(NamedTuple):
    """What a handler takes."""

    #: The type of the body.
    body: Any
    #: Whether the message is its second argument.
    message: bool


def with_typed_body(handler: Callable[..., Any], when_invalid: str | None) -> Callable[[Message], Any]:
    """The handler as a function of a message. If it takes a message, that is the handler itself.

    Raises if the body cannot be decoded into the type that the handler takes.
    """
    parameters = _handler_parameters(handler)
    if parameters is None:
        checked_callable("the handler", handler, "with the message and nothing else", object())
        if when_invalid is not None:
            raise InvalidOptionError(
                "`invalid_body` needs a handler whose first parameter is annotated with the type of the body"
            )
        return handler
    if parameters.message:
        checked_callable("the handler", handler, "with the body and the message", object(), object())
    else:
        checked_callable("the handler", handler, "with the body and nothing else", object())
    decode = _decoder(parameters.body, is_retried=when_invalid == "retry")
    if not is_async(handler):
        if parameters.message:
            return lambda msg: handler(decode(msg.body), msg)
        return lambda msg: handler(decode(msg.body))

    async def decoded(msg: Message) -> Any:
        return await handler(decode(msg.body))

    async def decoded_with_message(msg: Message) -> Any:
        return await handler(decode(msg.body), msg)

    return decoded_with_message if parameters.message else decoded


def checked_batch_handler(handler: Callable[..., Any], when_invalid: str | None) -> Callable[[Any], Any]:
    """The handler, which gets lists of messages. Raises if it expects something else."""
    checked_callable("the handler", handler, "with a list of messages and nothing else", [])
    if when_invalid is not None:
        raise InvalidOptionError("`invalid_body` is for handlers of bodies, and with `batch` a handler gets messages")
    first = _parameter(signature_of(handler), 0)
    if first is not None:
        body = _annotation(handler, first)
        elements = get_args(body)
        if _is_message(body) or (elements and not any(_is_message(it) or it in (Any, object) for it in elements)):
            raise InvalidTypeError(
                f"with `batch` the handler gets a list of messages: annotate `{first.name}` as `list[retryrmq.Message]`"
            )
    return handler


# What the handler takes.


def _handler_parameters(handler: Callable[..., Any]) -> _HandlerParameters | None:
    """``None`` if it takes the message alone, or if that cannot be known."""
    signature = signature_of(handler)
    first, second = _parameter(signature, 0), _parameter(signature, 1)
    if first is None:
        return None
    body = _annotation(handler, first)
    if _is_message(body):
        return None
    second_type: Any = None
    if second is not None:
        with contextlib.suppress(
            InvalidTypeError
        ):  # it has a default, and is none of our business; or it is refused below
            second_type = _annotation(handler, second)
    takes_message = _is_message(second_type)
    is_wanted = second is not None and second.default is inspect.Parameter.empty
    if body in (inspect.Parameter.empty, Any, object):
        if takes_message and is_wanted:
            raise InvalidTypeError(
                f"the handler gets the body as `{first.name}`, which needs an annotation: the type to decode it into"
            )
        return None
    if body in (bytes, bytearray, memoryview):
        raise InvalidTypeError(
            f"`{first.name}` of the handler cannot be {body.__name__}: bodies are decoded from JSON; for the bytes take the message, as "
            f"`{first.name}: retryrmq.Message`, and use its `body`"
        )
    if second is not None and is_wanted and not takes_message:
        if second_type is not inspect.Parameter.empty:
            raise InvalidTypeError(f"`{second.name}` of the handler is its message: annotate it as `retryrmq.Message`")
        takes_message = True
    return _HandlerParameters(body, takes_message)


def _parameter(signature: inspect.Signature | None, index: int) -> inspect.Parameter | None:
    """The parameter that gets the argument with this index; ``None`` if there is none of its own."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [] if signature is None else [it for it in signature.parameters.values() if it.kind in positional]
    return found[index] if index < len(found) else None


def _annotation(handler: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The annotation as a value; postponed ones are text."""
    annotation = parameter.annotation
    while isinstance(text := getattr(annotation, "__forward_arg__", annotation), str):
        annotation = _evaluated(handler, parameter.name, text, lambda known, local: eval(text, known, local))
    if _has_forward_reference(annotation):
        found = annotation
        annotation = _evaluated(
            handler, parameter.name, str(found), lambda known, local: _resolved(found, known, local)
        )
    return annotation


def _has_forward_reference(annotation: Any) -> bool:
    """Whether a type in it is text, as in ``list["Order"]``."""
    if get_origin(annotation) is Literal:
        return False
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        inner = inner[:1]  # what else there is says something about it
    return any(isinstance(getattr(it, "__forward_arg__", it), str) or _has_forward_reference(it) for it in inner)


def _resolved(annotation: Any, known: dict[str, Any], local: dict[str, Any]) -> Any:
    """The annotation with types in the place of texts."""

    def handler() -> None: ...

    handler.__annotations__ = {"body": _with_references(annotation)}
    return get_type_hints(handler, known, local, include_extras=True)["body"]


def _with_references(annotation: Any) -> Any:
    """The annotation with references in the place of texts: Python 3.10 does not look for texts in ``list["Order"]``."""
    if isinstance(annotation, str):
        return ForwardRef(annotation)
    inner = get_args(annotation)
    if isinstance(annotation, types.GenericAlias):
        return types.GenericAlias(get_origin(annotation), tuple(map(_with_references, inner)))
    if get_origin(annotation) is Annotated:
        return Annotated[(_with_references(inner[0]), *inner[1:])]
    if get_origin(annotation) in (Union, types.UnionType):
        return Union[tuple(map(_with_references, inner))]  # noqa: UP007
    return annotation


def _evaluated(
    handler: Callable[..., Any],
    parameter: str,
    text: str,
    evaluate: Callable[[dict[str, Any], dict[str, Any]], Any],
) -> Any:
    function = _function_of(handler)
    known, local = getattr(function, "__globals__", {}), _enclosing_locals(function)
    try:
        return evaluate(known, local)
    except Exception as error:
        # Often only type checkers import it.
        if re.fullmatch(r"(\w+\.)*Message", text):
            return Message
        with contextlib.suppress(Exception):
            return evaluate(known, {"Message": Message, **local})
        raise InvalidTypeError(
            f"the annotation `{text}` of `{parameter}` cannot be resolved ({described(error)}), and it decides how the body is decoded; "
            "import the type outside of `if TYPE_CHECKING`, or define it in the module"
        ) from error


def _function_of(handler: Any) -> Any:
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = inspect.unwrap(handler)
    if inspect.isfunction(handler) or inspect.ismethod(handler):
        return handler.__func__ if inspect.ismethod(handler) else handler
    return inspect.unwrap(getattr(type(handler), "__call__", None))  # type: ignore[arg-type] # noqa: B004


def _enclosing_locals(function: Any) -> dict[str, Any]:
    """The local variables of the running functions in which the handler is defined: its type may be defined beside it."""
    names: dict[str, Any] = {}
    # `Service.main.<locals>.handle` is defined in a function with the name `main`.
    around = {part.rpartition(".")[2] for part in getattr(function, "__qualname__", "").split(".<locals>")[:-1]}
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and around:
        if frame.f_code.co_filename == file and frame.f_code.co_name in around:
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def _is_message(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated or get_origin(annotation) in (Union, types.UnionType):
        return any(_is_message(argument) for argument in get_args(annotation))
    return annotation is Message


# How the body is decoded.


def _decoder(kind: Any, is_retried: bool) -> _Decode:
    check = _validator(kind)

    def decode(body: bytes) -> Any:
        found = check(body)
        if type(found) is not _InvalidBody:
            return found
        # Not where the validator's error is handled: its text quotes the body, and it would be the context of this one.
        raise invalid_body(found.said, found.error_type, found.kinds, is_retried)

    return decode


def _validator(kind: Any) -> Callable[[bytes], Any]:
    """A function that decodes, or returns what is wrong."""
    plain = _untyped_container(kind)
    if plain is not None:
        return functools.partial(_validate_json, plain)
    if not _is_msgspec_type(kind):
        pydantic = _import_if_installed("pydantic")
        if hasattr(pydantic, "TypeAdapter"):
            return _pydantic_validator(pydantic, kind)
    msgspec = _import_if_installed("msgspec")
    if msgspec is not None:
        return _msgspec_validator(msgspec, kind)
    raise InvalidTypeError(
        f"{_type_text(kind)} as the type of a body needs pydantic 2 or msgspec; `pip install pydantic`, or take a dict or the message"
    )


def _invalid(error: BaseException, said: str) -> _InvalidBody:
    name, *kinds, _ = (kind.__name__ for kind in type(error).__mro__)
    return _InvalidBody(name, kinds, said)


def _import_if_installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _type_text(kind: Any) -> str:
    return f"`{name_of(kind) if isinstance(kind, type) and not get_args(kind) else kind}`"


def _untyped_container(kind: Any) -> type | None:
    """``dict`` or ``list``, if it says nothing of what is in it: that needs no package."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is dict and arguments in ((), (str, Any), (str, object)):
        return dict
    if origin is list and arguments in ((), (Any,), (object,)):
        return list
    return None


def _validate_json(kind: type, body: bytes) -> Any:
    try:
        # As strict as msgspec: no other encoding, which `json` would guess, and no NaN.
        found = json.loads(str(body, "utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        return _invalid(error, f"invalid UTF-8 at byte {error.start}: {error.reason}")
    except (ValueError, RecursionError) as error:
        return _invalid(error, str(error))
    if type(found) is not kind:
        said = f"expected a {kind.__name__}, got {type(found).__name__}"
        return _InvalidBody("ValidationError", ["ValueError", "Exception", "BaseException"], said)
    return found


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _pydantic_validator(pydantic: Any, kind: Any) -> Callable[[bytes], Any]:
    wrong = cast("type[BaseException]", pydantic.ValidationError)
    try:
        adapter = pydantic.TypeAdapter(kind)
        with contextlib.suppress(wrong):
            adapter.validate_json(b"")  # it raises if a type that a field names does not exist yet
    except Exception as error:  # it has many classes for them
        raise InvalidTypeError(f"pydantic cannot decode a body into {_type_text(kind)}: {error}") from error

    def check(body: bytes) -> Any:
        try:
            return adapter.validate_json(body)
        except wrong as error:
            details = cast("Any", error).errors(include_url=False, include_input=False)
            return _invalid(error, _joined([_pydantic_error_text(detail) for detail in details]))

    return check


def _pydantic_error_text(detail: Any) -> str:
    said = detail["msg"]
    if detail["type"] == "union_tag_invalid":  # the only text that quotes a value
        said = f"Input tag does not match any of the expected tags: {detail['ctx']['expected_tags']}"
    return ": ".join(filter(None, (".".join(map(str, detail["loc"])), said)))


def _joined(details: list[str]) -> str:
    more = len(details) - _MAX_FIELDS
    return "; ".join(details[:_MAX_FIELDS]) + (f"; and {more} more" if more > 0 else "")


def _is_msgspec_type(kind: Any) -> bool:
    """Whether it is a type of msgspec, or made of one. Then msgspec is imported."""
    msgspec = sys.modules.get("msgspec")
    if msgspec is None:
        return False
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return True
    return isinstance(kind, msgspec.Meta) or any(map(_is_msgspec_type, get_args(kind)))


def _msgspec_validator(msgspec: Any, kind: Any) -> Callable[[bytes], Any]:
    try:
        decoder = msgspec.json.Decoder(kind)
    except Exception as error:
        raise InvalidTypeError(f"msgspec cannot decode a body into {_type_text(kind)}: {error}") from error

    def check(body: bytes) -> Any:
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _invalid(error, _msgspec_error_text(str(error)))

    return check


def _msgspec_error_text(said: str) -> str:
    """The text of msgspec as that of pydantic: the field first, and no value."""
    found = re.fullmatch(r"(?s)(.*?)(?: - at `\$\.?(.*)`)?", said)
    assert found is not None  # it matches everything
    what, field = found[1], found[2]
    what = re.sub(r"(?s)^(Invalid (?:enum )?value) .*", r"\1", what)
    return f"{field}: {what}" if field else what
