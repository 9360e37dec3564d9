"""The TOML file: engine settings at the top level, the others in a table each. Unknown names are errors."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nanoserve.entrypoints.config.setting import Setting, Sourced
from nanoserve.ports.errors import BadValueError


def read_toml(path: str, settings: Iterable[Setting]) -> dict[str, Sourced]:
    """The values a file sets, by setting name, each checked; `settings` are all that it may name."""
    document = _parse(path)
    known = {(each.table, each.name): each for each in settings}
    found: dict[str, Sourced] = {}
    for table, name, value in _entries(document, {table for table, _ in known if table}):
        if (table, name) not in known:
            raise BadValueError("config", _unknown(path, table, name, known))
        origin = f"{path} [{table}]" if table else path
        found[name] = Sourced(known[table, name].read(value, origin, text=False), origin)
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
