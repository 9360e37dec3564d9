"""A `Setting`: one named value that a flag, the environment and the TOML file can all set; how that file is read, and how other packages add settings."""

from __future__ import annotations

import difflib
import importlib.metadata
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs

from nanoserve.entrypoints.compose.config.kinds import ValueKind, boolean, or_none
from nanoserve.ports.errors import BadValueError


@attrs.frozen
class Sourced:
    """A value and where it came from."""

    value: Any
    origin: str


@attrs.frozen(kw_only=True)
class Setting:
    """The declaration of a setting before a source gives it a value; `table` is its TOML table, empty for the top level."""

    name: str
    table: str
    kind: ValueKind
    default: Any
    summary: str

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return "NANOSERVE_" + self.name.upper()

    @property
    def key(self) -> str:
        """Its dotted name in TOML."""
        return f"{self.table}.{self.name}" if self.table else self.name

    def read(self, value: Any, origin: str, *, text: bool) -> Sourced:
        """The checked value; raises `BadValueError` with the setting's name and the origin."""
        try:
            return Sourced(self.kind.parse(value) if text else self.kind.check(value), origin)
        except ValueError as error:
            raise BadValueError(self.name, f"{error} (from {origin})") from None


def setting(default: Any, kind: ValueKind, summary: str) -> Any:
    """Declare an attribute of a settings class together with its kind and its help."""
    return attrs.field(default=default, metadata={"kind": kind, "summary": summary})


def switch(summary: str, *, default: bool = False) -> Any:
    """Declare one that is on or off."""
    return setting(default, boolean(), summary)


def optional(kind: ValueKind, summary: str, word: str = "none") -> Any:
    """Declare one that is None if no source names it; `word` is the text for None."""
    return setting(None, or_none(kind, word), summary)


def read_toml(path: str, settings: Sequence[Setting]) -> dict[str, Sourced]:
    """The values a file sets, by setting name, each checked; `settings` are all that it may name."""
    known = {each.key: each for each in settings}
    found: dict[str, Sourced] = {}
    for key, value in _entries(_parse(path), {key.rpartition(".")[0] for key in known}):
        if key not in known:
            homes = [each for each in sorted(known) if each.rpartition(".")[2] == key.rpartition(".")[2]]
            near = homes or difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadValueError("config", f"{path} sets {key!r}, which is not a setting{hint}")
        table = key.rpartition(".")[0]
        found[known[key].name] = known[key].read(value, f"{path} [{table}]" if table else path, text=False)
    return found


def _parse(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadValueError("config", f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:  # of the text, or of its encoding
        raise BadValueError("config", f"{path} is not valid TOML: {error}") from None


def _entries(document: Mapping[str, Any], tables: set[str]) -> Iterable[tuple[str, Any]]:
    """Dotted keys with their values; a name that has a dot of its own stays in quotes, and is no key."""
    for name, value in document.items():
        if name in tables and isinstance(value, dict):
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        else:
            yield f'"{name}"' if "." in name else name, value


T = TypeVar("T")
LEFT_OUT: Final[dict[str, str]] = {}
"""By package, the first of its entry points that could not be loaded, and why."""


def load_extensions(group: str, read: Callable[[str, Any], T]) -> dict[str, T]:
    """By name, the result of `read` for each entry point's name and object."""
    found = {}
    for each in sorted(importlib.metadata.entry_points(group=group)):
        try:
            found[each.name] = read(each.name, each.load())
        except Exception as error:  # noqa: BLE001 - it is another package's code
            package = "of an unknown name" if each.dist is None else each.dist.name
            LEFT_OUT.setdefault(package, f"{each.value}, which cannot be loaded: {error}")
    return found
