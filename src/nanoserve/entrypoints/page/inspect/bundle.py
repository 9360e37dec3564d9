"""Joins the page's modules into one script, for a file that must bring all it needs.

Each module becomes a function that returns what it exports, called after those that it imports from; so their names do
not meet. It reads the plain forms of `import` and `export` that the page is written in, and refuses any other.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Final

from nanoserve.ports.errors import NanoserveError

_IMPORT: Final = re.compile(r'^import (?:\{([^{}]*)\}|\* as (\w+)) from "([^"]+)";$', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:function|class|const)\b)", re.MULTILINE)
_NAME: Final = re.compile(r"(?:async )?(?:function\*?|class|const) (\w+)")
_OTHER: Final = re.compile(r"^(?:import\b|export\b).*|^[^/*\n]*\bimport\(.*", re.MULTILINE)


class BundleError(NanoserveError):
    """A module is missing, imports itself in a circle, or is written in a form that cannot be joined."""


def bundle(modules: Mapping[str, str], entry: str) -> str:
    """One script that does what the module `entry` does; modules by their absolute paths."""
    numbers: dict[str, int] = {}
    joined: list[str] = []
    _join(entry, modules, numbers, joined, ())
    return "\n".join(joined)


def _join(
    path: str,
    modules: Mapping[str, str],
    numbers: dict[str, int],
    joined: list[str],
    importers: tuple[str, ...],
) -> None:
    if path in importers:
        raise BundleError(f"{path} is imported in a circle: {' -> '.join((*importers, path))}")
    if path in numbers:
        return
    if path not in modules:
        raise BundleError(
            f"there is no module {path}, which {importers[-1]} imports"
            if importers
            else f"there is no module {path}"
        )
    text = modules[path]
    for found in _IMPORT.finditer(text):
        _join(_resolve(path, found[3]), modules, numbers, joined, (*importers, path))
    body = _IMPORT.sub(lambda found: _bind(found, numbers[_resolve(path, found[3])]), text)
    exported = [_NAME.match(body, found.end()) for found in _EXPORT.finditer(body)]
    body = _EXPORT.sub("", body)
    if other := _OTHER.search(body):
        raise BundleError(f"{path}: cannot be joined with others: {other[0]}")
    numbers[path] = len(numbers)
    names = ", ".join(each[1] for each in exported if each is not None)
    joined.append(
        f"// {path}\nconst module{numbers[path]} = (() => {{\n{body.rstrip()}\nreturn {{ {names} }};\n}})();\n"
    )


def _resolve(importer: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), target))


def _bind(found: re.Match[str], number: int) -> str:
    """What stands for an import: the same names, taken from what the other module returned."""
    names, space, _ = found.groups()
    if space is not None:
        return f"const {space} = module{number};"
    renamed = re.sub(r"\s+as\s+", ": ", names.strip())
    return f"const {{ {renamed} }} = module{number};"
