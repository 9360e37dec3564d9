"""Settings as people read them: as a table with the origin of each value, and as a configuration file with comments."""

from __future__ import annotations

import itertools
import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final

from nanoserve.entrypoints.compose.config.configuration import Configuration
from nanoserve.entrypoints.compose.config.kinds import Secret, ValueKind
from nanoserve.entrypoints.compose.config.setting import Setting

_WIDTH: Final = 100


def written(kind: ValueKind, value: Any) -> str:
    """A value as a person would write it."""
    if value is None:
        return kind.none_word or "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(":".join(map(str, each)) if isinstance(each, tuple) else str(each) for each in value)
    return str(value)


def as_table(configuration: Configuration, settings: Sequence[Setting]) -> Iterator[str]:
    """A line per setting: its name, its value and where that came from."""
    found = [(each, configuration.values[each.name]) for each in settings]
    rows = [("name", "value", "origin")]
    rows += [(each.name, written(each.kind, sourced.value), sourced.origin) for each, sourced in found]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return (f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for name, value, origin in rows)


def as_toml(configuration: Configuration, settings: Sequence[Setting]) -> Iterator[str]:
    """A file for `--config`: what a source has set stands as it is, defaults stand behind a `#`; keys are left out."""
    yield "# Settings of nanoserve, for --config FILE or NANOSERVE_CONFIG. A line without its # takes the place of the default."
    ordered = sorted(settings, key=lambda each: each.table)
    for table, members in itertools.groupby(ordered, key=lambda each: each.table):
        if table:
            yield from ("", f"[{table}]")
        for each in members:
            sourced = configuration.values[each.name]
            yield from ("", *_comment(each.summary))
            is_kept = sourced.origin == "default" or any(
                isinstance(one, Secret) for one in _items(sourced.value)
            )
            value = each.default if is_kept else sourced.value
            yield f"{'# ' if is_kept else ''}{each.name} = {_toml(each.kind, value)}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,)


def _toml(kind: ValueKind, value: Any) -> str:
    """JSON's texts, numbers, switches and lists are TOML's too."""
    return json.dumps(kind.none_word if value is None else value, ensure_ascii=False)
