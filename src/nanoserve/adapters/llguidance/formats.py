"""Formats of JSON schemas that llguidance takes too widely, made exact by what is written beside them.

It knows how many days each month has, but the 29 February of any year, leap seconds at any time of day, and hostnames of any length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_LEAP_YEAR: Final = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DAY: Final = f"([0-9]{{4}}-(0[13-9]|1[0-2]|02-([01]|2[0-8]))|{_LEAP_YEAR}-02-29)"
_TIME: Final = "[0-9]{2}:[0-9]{2}:[0-5]"
"""Without leap seconds, which are allowed in one minute of the day, by the offset from UTC."""
_BESIDE: Final[Mapping[str, Mapping[str, Any]]] = {
    "date": {"pattern": f"^{_DAY}"},
    "time": {"pattern": f"^{_TIME}"},
    "date-time": {"pattern": f"^{_DAY}[0-9-]*.{_TIME}"},
    "hostname": {"maxLength": 253},
}
_NAMED_SCHEMAS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_DATA: Final = frozenset({"enum", "const", "default", "examples"})


def with_exact_formats(schema: Any) -> Any:
    """The same schema, or one that says more where a format alone says too little."""
    if isinstance(schema, list):
        return [with_exact_formats(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: value if key in _DATA else _inside(key, value) for key, value in schema.items()}
    form = schema.get("format")
    if isinstance(form, str) and form in _BESIDE:
        others = found.get("allOf", [])
        found["allOf"] = [*others, _BESIDE[form]] if isinstance(others, list) else others
    return found


def written(schema: Any) -> str:
    """As JSON, members in their order."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _inside(key: str, value: Any) -> Any:
    if key in _NAMED_SCHEMAS and isinstance(value, dict):
        return {name: with_exact_formats(each) for name, each in value.items()}
    return with_exact_formats(value)
