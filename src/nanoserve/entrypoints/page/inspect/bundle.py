"""Joins the page's modules into one script, for a file that must bring all it needs.

Each module becomes a function that returns what it exports, called after those that it imports from; so their names do
not meet. It reads the plain forms of `import` and `export` that the page is written in, and refuses any other.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
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
    imports: dict[str, list[str]] = {}
    waiting = [(entry, "")]
    while waiting:
        path, importer = waiting.pop()
        if path in imports:
            continue
        if path not in modules:
            raise BundleError(f"there is no module {path}{importer and f', which {importer} imports'}")
        imports[path] = [_resolve(path, found[3]) for found in _IMPORT.finditer(modules[path])]
        waiting += [(each, path) for each in imports[path]]
    try:
        order = list(TopologicalSorter(imports).static_order())
    except CycleError as error:
        circle = reversed(error.args[1])  # it names the imported module before the one that imports it
        raise BundleError(f"modules are imported in a circle: {' -> '.join(circle)}") from None
    numbers = {path: number for number, path in enumerate(order)}
    return "\n".join(_function(path, modules[path], numbers) for path in order)


def _function(path: str, text: str, numbers: Mapping[str, int]) -> str:
    body = _IMPORT.sub(lambda found: _bind(found, numbers[_resolve(path, found[3])]), text)
    exported = [_NAME.match(body, found.end()) for found in _EXPORT.finditer(body)]
    body = _EXPORT.sub("", body)
    if other := _OTHER.search(body):
        raise BundleError(f"{path}: cannot be joined with others: {other[0]}")
    names = ", ".join(each[1] for each in exported if each is not None)
    return f"// {path}\nconst module{numbers[path]} = (() => {{\n{body.rstrip()}\nreturn {{ {names} }};\n}})();\n"


def _resolve(importer: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), target))


def _bind(found: re.Match[str], number: int) -> str:
    """The replacement of an import: the same names, taken from what the other module returned."""
    names, space, _ = found.groups()
    if space is not None:
        return f"const {space} = module{number};"
    renamed = re.sub(r"\s+as\s+", ": ", names.strip())
    return f"const {{ {renamed} }} = module{number};"
