"""The first line of a docstring is read without the code above it: its subject is the thing that it describes.

A public method is described once: in its class, or in the protocol or base class that has it, too.
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

SOURCE = pathlib.Path(__file__).parents[3] / "src"
UNNAMED = ("What ", "Whether ", "Of ", "The same ", "That ", "They ")
"""Beginnings that name no subject."""


def first_lines(text: str) -> Iterator[str]:
    """The first lines of docstrings, those of constants and fields included."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else []:
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                yield each.value.value.strip().split("\n")[0]


def test_first_lines_are_found_wherever_they_stand() -> None:
    text = '"""Module."""\nONE = 1\n"""Of all."""\nclass A:\n    """What it is.\n\n    More."""\n    def b(self):\n        "Whether."\n'
    assert sorted(first_lines(text)) == ["Module.", "Of all.", "What it is.", "Whether."]


def test_docstrings_name_their_subject() -> None:
    found = [
        f"{file.relative_to(SOURCE)}: {line}"
        for file in sorted(SOURCE.rglob("*.py"))
        for line in first_lines(file.read_text(encoding="utf-8"))
        if line.startswith(UNNAMED)
    ]
    assert not found, "\n".join(found)


def public_methods(text: str) -> Iterator[tuple[str, bool]]:
    """Names of public methods of public classes, and whether each is described."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_"):
                    yield each.name, ast.get_docstring(each) is not None


def test_every_public_method_is_described_in_some_class() -> None:
    methods = [
        each for file in SOURCE.rglob("*.py") for each in public_methods(file.read_text(encoding="utf-8"))
    ]
    described = {name for name, is_described in methods if is_described}
    assert {name for name, is_described in methods if not is_described} <= described
