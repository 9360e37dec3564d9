"""What the text of an answer must be, as clients write it in several fields of one body."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from nanoserve.entrypoints.app.orders import Format
from nanoserve.entrypoints.app.structured_outputs import constraint_of
from nanoserve.entrypoints.server.http.field_support import renamed
from nanoserve.ports.errors import BadValueError

RESPONSE_FORMAT: Final = "response_format"
STRUCTURED: Final = "structured_outputs"
MEMBERS: Final = {
    **{f"guided_{name}": name for name in ("json", "regex", "choice", "grammar")},
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
}
"""The names that vLLM's older clients, SGLang's and llama.cpp's have for members of `structured_outputs`."""


def body_format(body: msgspec.Struct) -> Format | None:
    """What a body of OpenAI's older endpoints asks for; None for any text. Raises `BadValueError`."""
    asked = [
        name for name in (RESPONSE_FORMAT, STRUCTURED, *MEMBERS) if getattr(body, name) not in (None, {}, "")
    ]
    formats = [found for name in asked if (found := _format(name, getattr(body, name))) is not None]
    if len(formats) > 1:
        raise BadValueError(formats[1].name, f"does not go with {formats[0].name}")
    return formats[0] if formats else None


def schema_format(name: str, given: Any) -> Format | None:
    """The same of one object `{"type": "json_schema", "schema": ...}`, which the client calls `name`."""
    return None if given is None else _format(name, given, as_format=True)


def _format(name: str, given: Any, *, as_format: bool = False) -> Format | None:
    as_format = as_format or name == RESPONSE_FORMAT
    inside = {MEMBERS[name]: given} if name in MEMBERS else given
    try:
        constraint = (
            constraint_of(response_format=inside) if as_format else constraint_of(structured_outputs=inside)
        )
    except BadValueError as error:
        _, _, path = error.parameter.partition(".")
        raise renamed(error, f"{name}.{path}" if path and name not in MEMBERS else name) from None
    return None if constraint is None else Format(constraint, name)
