"""Request bodies: JSON into a msgspec struct, with one clear error for each way in which a body can be wrong.

Handlers declare nothing of the body to Litestar: `documented` puts it into the OpenAPI document, `read_body` reads it.
"""

from __future__ import annotations

import functools
import json
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
import structlog
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.exceptions import InternalServerException
from litestar.types import Guard

from nanoserve.entrypoints.compose.config.serve_settings import BoundSettings
from nanoserve.entrypoints.server.http.errors import RequestError
from nanoserve.entrypoints.server.http.field_support import parts_of, support
from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError

BODY_KEY: Final = "body"
BOUNDS_KEY: Final = "bounds"
"""Where the app's state has the bounds of bodies."""
BYTES_PER_PART: Final = 64
"""Bytes of the largest body, or of 4 MiB, for each name, text, object or array in one: 65,536 at least."""
BYTES_PER_ITEM: Final = 16
"""Bytes for each member or item, such as the number of a token."""
MAX_EXTREME: Final = 1_000
"""Numbers that are very large, small or long; each takes some hundred times as long as others."""
StructT = TypeVar("StructT", bound=msgspec.Struct)

_NOT_BRACKETS: Final = bytes(sorted(set(range(256)) - set(b"[]{}")))
_DIGITS: Final = bytes.maketrans(b"123456789.", b"0" * 10)
_LONG_NUMBER: Final = b"0" * 100
_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MOST_SHOWN: Final = 16
_BROWSERS: Final = frozenset({"origin", "sec-fetch-site"})
"""Headers that browsers send with requests of pages."""
_PLACE: Final = re.compile(r"^(?P<reason>.*) - at (?:`key` in )?`\$\.?(?P<path>.*)`$", re.DOTALL)
_KINDS: Final = {
    "array": "a list",
    "object": "an object",
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}


def documented(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Arguments that a handler passes to `@post` (as `**documented(Kind)`) so that OpenAPI shows its body."""
    return {"opt": {BODY_KEY: kind}}


async def read_body(
    request: Request[Any, Any, Any], kind: type[StructT], *, any_type: bool = False
) -> StructT:
    """The body as `kind`; raises `RequestError` (415, 400) or `BadValueError` that names the field at fault.

    The size is bounded by the app (413). Unsupported values are refused; unknown fields are logged, or refused if the server is
    strict. With `any_type` the content type may be any where no browser asks: a page of another site can send a body of another
    type without asking first, and its browser always says where it is from.
    """
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise RequestError(415, "Compressed bodies are not supported.", code="unsupported_media_type")
    if not any_type or not _BROWSERS.isdisjoint(request.headers.keys()):
        _require_json(request)
    try:
        body = await request.body()
    except InternalServerException:
        message = "The client left before its body was complete."
        raise RequestError(400, message, code="incomplete_body") from None
    return decode_body(body, kind, bounds_of(request))


def only_query(*names: str, repeats: bool = False) -> Guard:
    """A guard for routes that read nothing but these query parameters: others, and a body, raise `BadValueError`.

    So does one that comes twice, unless it `repeats`.
    """

    async def refuse_others(request: ASGIConnection[Any, Any, Any, Any], _: object) -> None:
        path = request.scope["path"]
        takes = f"{path} takes {', '.join(names)}" if names else f"{path} takes none"
        if others := sorted(request.query_params.keys() - {*names}):
            raise BadValueError(others[0][:64], f"is not a parameter of this route: {takes}")
        for name in () if repeats else names:
            if len(request.query_params.getall(name, [])) > 1:
                raise BadValueError(name, "must be given once")
        assert isinstance(request, Request)
        if (await request.body()).strip() not in {b"", b"{}"}:
            example = f"; send parameters in the address, as in {path}?{names[0]}=..." if names else ""
            raise BadValueError("body", f"is not read by this route, so it must be empty{example}")

    return refuse_others


def bounds_of(request: Request[Any, Any, Any]) -> BoundSettings:
    """The bounds of bodies, as the app has them."""
    return request.app.state.get(BOUNDS_KEY) or BoundSettings()


def decode_body(body: bytes, kind: type[StructT], bounds: BoundSettings) -> StructT:
    """The body as `kind`; raises as `read_body` does."""
    if not body:
        raise RequestError(400, "The body is empty; a JSON object is needed.", code="invalid_json")
    _check_parts(body, bounds.max_body_size)
    if nests_deeper(body, bounds.max_json_depth):
        message = f"The body nests objects and arrays deeper than {bounds.max_json_depth}."
        raise RequestError(400, message, code="invalid_json")
    decoded = _decode(body, kind)
    unknown = unknown_fields(body, decoded)
    if unknown and bounds.strict_params:
        raise BadValueError(unknown[0], "is not a field of this request (the server refuses unknown ones)")
    if unknown:
        shown = unknown[:_MOST_SHOWN]
        log = structlog.get_logger()
        log.warning("unknown fields were ignored", fields=shown, count=len(unknown), body=kind.__name__)
    refuse_unsupported(decoded)
    return decoded


def _check_parts(body: bytes, max_body_size: int) -> None:
    """Raise `RequestError` for a body of too many parts: to decode them, all of them in one go, holds up every other client."""
    size = max(max_body_size, 4 << 20)
    most, most_items = size // BYTES_PER_PART, size // BYTES_PER_ITEM
    quoted = _unescaped(body)
    if quoted.count(b'"') > 2 * most:
        raise _too_many(most, "names and texts")
    bare = b"".join(quoted.split(b'"')[::2])
    if bare.count(b"[") + bare.count(b"{") > most:
        raise _too_many(most, "objects and arrays")
    if bare.count(b",") > most_items:
        raise _too_many(most_items, "members and items")
    e, true, false = bare.count(b"E") + bare.count(b"e"), bare.count(b"ue"), bare.count(b"se")
    if e - true - false + bare.translate(_DIGITS).count(_LONG_NUMBER) > MAX_EXTREME:
        raise _too_many(MAX_EXTREME, "numbers with an exponent or a hundred digits")


def _unescaped(body: bytes) -> bytes:
    """Without the escapes of strings, in calls of which none takes long. A backslash outside of strings is no JSON and ends decoding."""
    return body.replace(rb"\\", b"").replace(rb"\"", b"")


def _too_many(most: int, parts: str) -> RequestError:
    message = f"The body has more than {most} {parts}; send fewer at once."
    return RequestError(400, message, code="invalid_json")


def nests_deeper(body: bytes, depth: int) -> bool:
    """True if brackets are nested deeper than `depth`; in time linear in the body for each level."""
    if body.count(b"[") + body.count(b"{") <= depth:
        return False
    brackets = b"".join(_unescaped(body).split(b'"')[::2]).translate(_SQUARE, _NOT_BRACKETS)
    for _ in range(depth):
        if b"[" * (depth + 1) in brackets:
            return True
        brackets = brackets.replace(b"[]", b"")
    return b"[" in brackets


def unknown_fields(raw: bytes | msgspec.Raw, decoded: Any, path: str = "") -> list[str]:
    """The paths of members that the struct has no field for, in structs inside it too; other values are not read."""
    if isinstance(decoded, msgspec.Struct):
        names = dict(zip(decoded.__struct_encode_fields__, decoded.__struct_fields__, strict=True))
        tag = decoded.__struct_config__.tag_field
        members = _MEMBERS.decode(raw)
        found = [f"{path}{name[:64]}" for name in members if name not in names and name != tag]
        for name in filter(names.__contains__, members):
            found += unknown_fields(members[name], getattr(decoded, names[name]), f"{path}{name}.")
        return found
    # Prompts of ids have thousands of members: none is looked at by itself.
    if isinstance(decoded, list) and any(
        issubclass(kind, msgspec.Struct) for kind in set(map(type, decoded))
    ):
        stem = path.removesuffix(".")
        pairs = enumerate(zip(_ITEMS.decode(raw), decoded, strict=True))
        return [
            name
            for index, (inner, each) in pairs
            for name in unknown_fields(inner, each, f"{stem}[{index}].")
        ]
    return []


def _require_json(request: Request[Any, Any, Any]) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        message = "The content type must be application/json."
        raise RequestError(415, message, code="unsupported_media_type")


def _decode(body: bytes, kind: type[StructT]) -> StructT:
    try:
        body.decode()  # msgspec does not look at what no field is for
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _placed(str(error)) from None
    except (ValueError, RecursionError) as error:
        place = _place_of_no_text(body)
        if place is not None:
            message = f"{place or 'body'}: is not text: half a surrogate pair, or bytes that are not UTF-8"
            raise RequestError(400, message, code="invalid_json", param=place or None) from None
        reason = str(error) if isinstance(error, msgspec.DecodeError) else "it cannot be read"
        raise RequestError(400, f"The body is not valid JSON: {reason}", code="invalid_json") from None


def _place_of_no_text(body: bytes) -> str | None:
    """The path of a text that UTF-8 cannot write, or of the object that has it for a name; None if there is none."""
    text = body.decode("utf-8", "surrogateescape")
    try:
        return _no_text_in(json.loads(text))
    except (ValueError, RecursionError):
        return _no_text_in(text)


def _no_text_in(value: Any, path: str = "") -> str | None:
    members: Iterable[tuple[str, Any]] = ()
    if isinstance(value, str):
        return path if _SURROGATE.search(value) else None
    if isinstance(value, dict):
        if any(_SURROGATE.search(name) for name in value):
            return path
        members = ((f"{path}.{name[:64]}".lstrip("."), each) for name, each in value.items())
    elif isinstance(value, list):
        members = ((f"{path}[{index}]", each) for index, each in enumerate(value))
    return next((found for name, each in members if (found := _no_text_in(each, name)) is not None), None)


def _placed(message: str) -> RequestError:
    """The message of msgspec with the field at fault as `param`; a missing field is its own name."""
    match = _PLACE.match(message)
    reason, path = (match["reason"], match["path"]) if match else (message, "")
    missing = re.match(r"Object missing required field `(.+)`", reason)
    param = ".".join(each for each in (path.replace("[...]", ""), missing and missing[1]) if each) or None
    code = "missing_field" if missing else "invalid_value" if " of length " in reason else "invalid_type"
    reason = "is required" if missing else _in_english(reason)
    return RequestError(400, f"{param or 'body'}: {reason}", code=code, param=param)


def _in_english(reason: str) -> str:
    """The message of msgspec in the field's own words: expected `array`, got `object` becomes must be a list, got an object."""
    kinds = re.sub(
        r"`([^`]+)`",
        lambda found: " or ".join(_KINDS.get(each, each) for each in found[1].split(" | ")),
        reason,
    )
    if kinds.startswith("Expected "):
        return kinds.replace("Expected", "must be", 1)
    return reason[:1].lower() + reason[1:]


def refuse_unsupported(body: msgspec.Struct, path: str = "") -> None:
    """Raise `BadValueError` for the first field, of structs inside too, with an unsupported value."""
    for name, found in _refusable(type(body)).items():
        value = getattr(body, name)
        if found is None:
            inside = [("", value)] if isinstance(value, msgspec.Struct) else _places(value)
            for place, each in inside:
                refuse_unsupported(each, f"{path}{name}{place}.")
        elif value is not None and not any(_same(value, each) for each in found):
            allowed = " or ".join(shown(each) for each in found)
            remedy = f"it can be {allowed}, or be left out" if found else "leave it out"
            message = f"is not supported by this server (got {shown(value)}); {remedy}"
            raise BadValueError(f"{path}{name}", message)


@functools.cache
def _refusable(body: type[msgspec.Struct]) -> Mapping[str, tuple[Any, ...] | None]:
    """The fields that may be refused, with their accepted values; None for those with structs inside that have such fields."""
    hints, marks = typing.get_type_hints(body), support(body)
    fields = {name: mark for name, mark in marks.items() if isinstance(mark, tuple)}
    inside = {name for name, hint in hints.items() if any(map(_has_refusable, parts_of(hint)))}
    return {name: fields.get(name) for name in marks if name in fields or name in inside}


def _has_refusable(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct) and bool(_refusable(kind))


def _places(value: Any) -> list[tuple[str, msgspec.Struct]]:
    """The structs of a list, with their places."""
    items = value if isinstance(value, list) else ()
    return [(f"[{place}]", each) for place, each in enumerate(items) if isinstance(each, msgspec.Struct)]


def _same(value: Any, harmless: Any) -> bool:
    """Equal, where JSON's 1 is not true."""
    return bool(isinstance(value, bool) == isinstance(harmless, bool) and value == harmless)
