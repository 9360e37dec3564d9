"""Trims a recorded request to its structure. Prose, ids, paths and dates of the recording are left out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

RECORDED_MODEL: Final = "talker"
MODEL: Final = "built-in"
_HEADERS: Final = ("accept", "content-type", "user-agent", "x-app", "originator")
_PREFIXES: Final = ("anthropic-", "openai-", "x-codex-beta")
_PROSE: Final = {"description", "title", "purpose", "whenToUse"}
_LONGEST: Final = 32
_CHANGES: Final = (
    (re.compile(r"/(?:tmp|root|home)/[\w./-]*"), "/home/user/project"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "00000000-0000-0000-0000-000000000000"),
    (re.compile(r"([0-9a-f]{6})[0-9a-f]{14,}"), r"\1"),
    (re.compile(r"\b20\d\d-\d\d-\d\d\b"), "2026-01-01"),
)


def trimmed(seen: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The requests that differ, in order."""
    found: dict[str, dict[str, Any]] = {}
    for each in seen:
        headers = {
            name: value
            for name, value in each["headers"].items()
            if name in _HEADERS or name.startswith(_PREFIXES)
        }
        kept = {
            "method": each["method"],
            "path": each["path"],
            "headers": headers,
            "body": _value(each["body"]),
        }
        found.setdefault(json.dumps(kept, sort_keys=True), kept)
    return list(found.values())


def _value(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _value(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [_value(each, name) for each in value]
    if not isinstance(value, str):
        return value
    if value == RECORDED_MODEL:
        return MODEL
    if name in _PROSE:
        return "What it is."
    for pattern, instead in _CHANGES:
        value = pattern.sub(instead, value)
    is_data = " " not in value or (value[:1] in "{[" and len(value) < 8 * _LONGEST)
    return value if len(value) <= _LONGEST or is_data else f"{value[:16].split()[0]} and so on."
