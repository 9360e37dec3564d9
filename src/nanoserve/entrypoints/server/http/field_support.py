"""Fields of a protocol that stand for features which are not here: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from nanoserve.ports.checks import shown
from nanoserve.ports.errors import BadValueError


def refuse_unsupported(body: Struct, accepted: Mapping[str, tuple[object, ...]]) -> None:
    """Raise `BadValueError` for the first field that holds none of the values that `accepted` lists for it.

    A dotted name is a field of a struct inside; it is skipped where that struct is None.
    """
    for name, values in accepted.items():
        found = _value(body, name)
        if found not in values:
            shown_values = " or ".join(shown(each) for each in values if each is not None)
            only = f"; it can be {shown_values}" if shown_values else ""
            raise BadValueError(name, f"this server does not support it{only}; leave it out")


def renamed(error: BadValueError, parameter: str) -> BadValueError:
    """The same error about a parameter under the name that the client knows."""
    return BadValueError(parameter, str(error).removeprefix(f"{error.parameter}: "))


def _value(body: Struct, name: str) -> object:
    found: object = body
    for part in name.split("."):
        found = None if found is None else getattr(found, part)
    return found
