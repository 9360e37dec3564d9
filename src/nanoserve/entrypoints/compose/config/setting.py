"""A `Setting`: one named value that a flag, the environment and the TOML file can all set; how that file is read, and how other packages add settings."""

from __future__ import annotations

import difflib
import importlib.metadata
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs

from nanoserve.entrypoints.compose.config.kinds import Kind
from nanoserve.ports.errors import BadValueError


@attrs.frozen
class Sourced:
    """A value and where it came from."""

    value: Any
    origin: str


@attrs.frozen(kw_only=True)
class Setting:
    """The declaration of a setting before a source gives it a value.

    Attributes:
        table: the TOML table it lives in; empty for the top level.
        default: its value where no source names it.
        summary: one sentence for `--help`.
        former: the dotted TOML name of an earlier release; it is read as well, as are its flag and its variable.
    """

    name: str
    table: str
    kind: Kind
    default: Any
    summary: str
    former: str = ""

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def flags(self) -> tuple[str, ...]:
        """The same, and what it was called."""
        former = self.former.rpartition(".")[2]
        return (self.flag, "--" + former.replace("_", "-")) if former else (self.flag,)

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return "NANOSERVE_" + self.name.upper()

    @property
    def variables(self) -> tuple[str, ...]:
        """What it was called, and the same."""
        former = self.former.rpartition(".")[2]
        return (f"NANOSERVE_{former.upper()}", self.variable) if former else (self.variable,)

    def read(self, value: Any, origin: str, *, text: bool) -> Sourced:
        """The checked value; raises `BadValueError` with the setting's name and the origin."""
        try:
            return Sourced(self.kind.parse(value) if text else self.kind.check(value), origin)
        except ValueError as error:
            raise BadValueError(self.name, f"{error} (from {origin})") from None


def setting(default: Any, kind: Kind, summary: str, *, former: str = "") -> Any:
    """Declare an attribute of a settings class together with its kind and its help."""
    return attrs.field(default=default, metadata={"kind": kind, "summary": summary, "former": former})


def read_toml(path: str, settings: Sequence[Setting]) -> dict[str, Sourced]:
    """The values a file sets, by setting name, each checked; `settings` are all that it may name."""
    document = _parse(path)
    known = {(each.table, each.name): each for each in settings}
    known |= {
        (home, name): each for each in settings for home, _, name in [each.former.rpartition(".")] if name
    }
    found: dict[str, Sourced] = {}
    for table, name, value in _entries(document, {table for table, _ in known if table}):
        if (table, name) not in known:
            raise BadValueError("config", _unknown(path, table, name, known))
        origin = f"{path} [{table}]" if table else path
        named = known[table, name]
        found[named.name] = named.read(value, origin, text=False)
    return found


def _parse(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadValueError("config", f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadValueError("config", f"{path} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise BadValueError("config", f"{path} is not valid TOML: {error}") from None


def _entries(document: Mapping[str, Any], tables: set[str]) -> Iterable[tuple[str, str, Any]]:
    for name, value in document.items():
        if name in tables and isinstance(value, dict):
            yield from ((name, inner, each) for inner, each in value.items())
        else:
            yield "", name, value


def _unknown(path: str, table: str, name: str, known: Mapping[tuple[str, str], Setting]) -> str:
    written = f"{table}.{name}" if table else name
    names = {f"{each.table}.{each.name}" if each.table else each.name for each in known.values()}
    homes = [each for each in sorted(names) if each.rpartition(".")[2] == name]
    near = homes or difflib.get_close_matches(written, sorted(names), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{path} sets {written!r}, which is not a setting{hint}"


T = TypeVar("T")
LEFT_OUT: Final[dict[str, str]] = {}
"""By package, the first of its entry points that could not be loaded, and why."""


def load_extensions(group: str, read: Callable[[str, Any], T]) -> dict[str, T]:
    """By name, what `read` makes of each entry point's name and object."""
    found = {}
    for each in sorted(importlib.metadata.entry_points(group=group)):
        try:
            found[each.name] = read(each.name, each.load())
        except Exception as error:  # noqa: BLE001 - it is another package's code
            package = "of an unknown name" if each.dist is None else each.dist.name
            LEFT_OUT.setdefault(package, f"{each.value}, which cannot be loaded: {error}")
    return found
