"""Small modules that one other module alone imports are read with it, and belong into it: there may only become fewer.

Three kinds stay apart because their folders are laid out alike: a family's page, a mixer's files, and a kernel's files for each device.
"""

from __future__ import annotations

import ast
import collections
import pathlib

SOURCES = pathlib.Path(__file__).parents[3] / "src"
SMALL = 40
"""Lines of a module that has to have two importers."""
BOUND = 1
"""The most small modules with one importer; lowered by the commit that merges one."""
PAGES = ("nanoserve.adapters.pytorch.models.", "nanoserve.adapters.pytorch.mixers.")
PARTS = ("cases", "cpu", "launch", "reference", "triton")
"""Files that every folder of `kernels` has."""


def modules() -> dict[str, pathlib.Path]:
    """Every module of nanoserve by its name."""
    found = {}
    for page in (SOURCES / "nanoserve").rglob("*.py"):
        parts = page.relative_to(SOURCES).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = page
    return found


def imported_by(page: pathlib.Path, known: dict[str, pathlib.Path]) -> set[str]:
    """The modules that a module imports, wherever it does so."""
    found = set()
    for node in ast.walk(ast.parse(page.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{each.name}" for each in node.names}
            found |= names & known.keys() or {node.module}
    return found & known.keys()


def crumbs() -> dict[str, str]:
    """Small modules, packages' own left out, with their only importer."""
    known = modules()
    importers = collections.defaultdict(list)
    for name, page in known.items():
        for each in imported_by(page, known):
            importers[each].append(name)
    return {
        name: importers[name][0]
        for name, page in sorted(known.items())
        if page.name != "__init__.py"
        and len(page.read_text().splitlines()) <= SMALL
        and len(importers[name]) == 1
        and not name.startswith(PAGES)
        and not (name.startswith("nanoserve.kernels.") and name.endswith(PARTS))
    }


def test_small_modules_with_one_importer_only_become_fewer() -> None:
    found = crumbs()
    assert len(found) <= BOUND, "\n".join(f"{name}: only {by} imports it" for name, by in found.items())
