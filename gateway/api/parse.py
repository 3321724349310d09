"""Bytes to a body Struct: guard first, decode once, explain in OpenAI's words."""

import re
from array import array
from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec

from shared.errors import InvalidRequestError

B = TypeVar("B", bound=msgspec.Struct)

_BOM: Final = b"\xef\xbb\xbf"
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: up, up, down, down
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_WORDS: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_TYPE_FAULT: Final = re.compile(r"Expected `(?P<want>[^`]+)`, got `(?P<got>[^`]+)`")
_PATH: Final = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")


def body_of(data: bytes, decoder: "msgspec.json.Decoder[B]", depth: int) -> B:
    """Decode `data`, nested at most `depth` levels, or raise InvalidRequestError naming the field."""
    _guard(data, depth)
    try:
        body = decoder.decode(data)
        if b"\\u0000" in data:
            _refuse_nul(data, body)
    except msgspec.ValidationError as fault:
        raise _explained(str(fault)) from None
    except msgspec.DecodeError as fault:
        raise _not_json(str(fault)) from None
    except RecursionError:
        raise _too_deep(depth) from None
    return body


def _guard(data: bytes, depth: int) -> None:
    if not data.strip():
        raise _not_json("the body is empty")
    if data.startswith(_BOM):
        raise _not_json("the body starts with a byte order mark")
    if not data.isascii():
        # msgspec checks the strings that it decodes, not those that it skips.
        try:
            data.decode()
        except UnicodeDecodeError as fault:
            raise _not_json(f"invalid UTF-8 (byte {fault.start})") from None
    # Nesting cannot exceed the number of opening brackets: true of almost every body, and two memory scans.
    if data.count(b"{") + data.count(b"[") > depth and _deeper_than(data, depth):
        raise _too_deep(depth)


def _deeper_than(data: bytes, depth: int) -> bool:
    r"""Whether brackets outside strings nest deeper than `depth`: linear, and every loop of it in C.

    Escapes go first (`\\` before `\"`, so that an odd run of backslashes keeps its last); then every other piece
    between quotes is outside a string. What is unbalanced is the decoder's to report.
    """
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(plain.split(b'"')[::2])
    return max(accumulate(array("b", outside.translate(_STEPS, _NOT_BRACKETS))), default=0) > depth


def _refuse_nul(data: bytes, body: msgspec.Struct) -> None:
    """Refuse U+0000 in any field that is read: C string APIs in tokenisers and databases would cut the text there."""
    known = set(body.__struct_fields__)
    for name, value in msgspec.json.decode(data).items():
        if name in known and (path := _nul_in(value, name)) is not None:
            raise InvalidRequestError(f"Invalid '{path}': text may not contain the character U+0000.", param=path)


def _nul_in(value: Any, path: str) -> str | None:
    if isinstance(value, str):
        return path if "\0" in value else None
    if isinstance(value, list):
        found = (_nul_in(item, f"{path}[{index}]") for index, item in enumerate(value))
    elif isinstance(value, dict):
        found = (path if "\0" in key else _nul_in(item, f"{path}.{key[:64]}") for key, item in value.items())
    else:
        return None
    return next((hit for hit in found if hit is not None), None)


def wire_safe(value: Any, param: str) -> None:
    """Refuse free-form JSON that the bus cannot carry: MessagePack has integers of 64 bits, JSON of any length."""
    try:
        msgspec.msgpack.encode(value)
    except OverflowError:
        raise invalid(param, "integers must fit in 64 bits.") from None


def _too_deep(depth: int) -> InvalidRequestError:
    return InvalidRequestError(f"The body is nested deeper than {depth} levels.", code="invalid_json")


def _not_json(why: str) -> InvalidRequestError:
    why = why.removeprefix("JSON is malformed: ")
    return InvalidRequestError(f"We could not parse the JSON body of your request: {why}.", code="invalid_json")


def _explained(fault: str) -> InvalidRequestError:
    """What msgspec's ValidationError says (`<what> - at <path>`), as OpenAI would say it."""
    at = _PATH.search(fault)
    param = (at["path"].replace("[...]", "") or None) if at else None
    subject = f"'{param}'" if param else "the body"
    kinds = _TYPE_FAULT.match(fault)
    if kinds is None:
        what = fault[: at.start()] if at else fault
        return InvalidRequestError(f"Invalid {subject}: {what[:1].lower()}{what[1:]}.", param=param)
    want = [_WORDS.get(kind, kind) for kind in kinds["want"].split(" | ") if kind != "null"]
    return wrong_type(param, " or ".join(want), _WORDS.get(kinds["got"], kinds["got"]))


def wrong_type(param: str | None, want: str, got: str) -> InvalidRequestError:
    """A value of the wrong type; `want` and `got` in words, with their article."""
    subject = f"'{param}'" if param else "the body"
    return InvalidRequestError(
        f"Invalid type for {subject}: expected {want}, but got {got} instead.", code="invalid_type", param=param
    )


def type_name(value: Any) -> str:
    """JSON's name for the type of a decoded value, with its article."""
    names = {str: "str", bool: "bool", int: "int", float: "float", list: "array", dict: "object"}
    return _WORDS[names.get(type(value), "null")]


def missing(param: str) -> InvalidRequestError:
    """A field that must be there is absent or null."""
    return InvalidRequestError(
        f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param
    )


def unsupported(param: str, why: str) -> InvalidRequestError:
    """A legal value that cannot be honoured here."""
    return InvalidRequestError(f"Unsupported value for '{param}': {why}", code="unsupported_value", param=param)


def invalid(param: str, why: str) -> InvalidRequestError:
    """A value of the right type that is out of bounds or makes no sense."""
    return InvalidRequestError(f"Invalid '{param}': {why}", param=param)
