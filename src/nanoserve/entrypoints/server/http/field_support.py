"""Fields of a protocol that stand for features which are not here: refused by name, never ignored.

Such a field says so where it is declared: `tools: Annotated[Any, only([])] = None` takes null and an empty list.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError

_HARMLESS: Final = "harmless"


def only(*harmless: Any) -> msgspec.Meta:
    """The annotation of a field that may hold nothing but null and these values, which change nothing."""
    allowed = " or ".join(shown(each) for each in harmless)
    description = f"Not supported; it can be {allowed}." if harmless else "Not supported; leave it out."
    return msgspec.Meta(description=description, extra={_HARMLESS: harmless})


def refuse_unsupported(body: msgspec.Struct, path: str = "") -> None:
    """Raise `BadValueError` for the first field, of structs inside too, that asks for what this server cannot do."""
    for name, harmless in _declared(type(body)).items():
        value = getattr(body, name)
        if isinstance(value, msgspec.Struct):
            refuse_unsupported(value, f"{path}{name}.")
        elif harmless is not None and value is not None and not any(_same(value, each) for each in harmless):
            allowed = " or ".join(shown(each) for each in harmless)
            remedy = f"it can be {allowed}, or be left out" if harmless else "leave it out"
            raise BadValueError(
                f"{path}{name}", f"is not supported by this server (got {shown(value)}); {remedy}"
            )


def renamed(error: BadValueError, parameter: str) -> BadValueError:
    """The same error about a parameter under the name that the client knows."""
    return BadValueError(parameter, str(error).removeprefix(f"{error.parameter}: "))


@functools.cache
def _declared(body: type[msgspec.Struct]) -> dict[str, tuple[Any, ...] | None]:
    """The harmless values of each field that is not supported, and None for each that may hold a struct."""
    found: dict[str, tuple[Any, ...] | None] = {}
    for name, annotation in typing.get_type_hints(body, include_extras=True).items():
        parts = list(_parts(annotation))
        extras = [each.extra for each in parts if isinstance(each, msgspec.Meta) and each.extra]
        if extras:
            found[name] = extras[0][_HARMLESS]
        elif any(isinstance(each, type) and issubclass(each, msgspec.Struct) for each in parts):
            found[name] = None
    return found


def _parts(annotation: Any) -> Iterator[Any]:
    yield from getattr(annotation, "__metadata__", ())
    yield annotation
    for each in typing.get_args(annotation):
        yield from _parts(each)


def _same(value: Any, harmless: Any) -> bool:
    """Equal, where JSON's 1 is not true."""
    return bool(isinstance(value, bool) == isinstance(harmless, bool) and value == harmless)
