"""For every test: Ctrl-C works, and the code blocks of README.md and docs/ are tests: Python as it stands, console as shell."""

from __future__ import annotations

import fnmatch
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

# A suite that was started in the background ignores Ctrl-C, and so would every process that a test sends it to.
signal.signal(signal.SIGINT, signal.default_int_handler)

COMMANDS_OF_MAKE = ("make", "git", "python3 -m venv", "pip", ".venv")


def run_console(example: Example) -> str | None:
    """Run the lines that begin with `$` in turn; the lines below each are its output, where `...` stands for anything."""
    for session in f"\n{example.parsed}".split("\n$ ")[1:]:
        command, _, expected = session.partition("\n")
        if command.startswith(COMMANDS_OF_MAKE):
            continue
        environment = os.environ | {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
        shell = ["bash", "-o", "pipefail", "-c", command]
        done = subprocess.run(shell, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            return f"{command} ended with {done.returncode}:\n{done.stderr}"
        pattern = "".join(f"[{each}]" if each in "[*?" else each for each in expected.strip()).replace(
            "...", "*"
        )
        if pattern and not fnmatch.fnmatchcase(done.stdout.strip(), pattern):
            return f"{command} printed\n{done.stdout}\nand not\n{expected}"
    return None


_begun: set[tuple[str, int]] = set()
"""Blocks of documents, by path and place, that this process has run."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Run what a Python block builds on: the blocks above it in its document, which another worker may have run."""
    example: Example | None = getattr(item, "example", None)
    if example is None or example.region.evaluator is run_console:
        return
    for each in example.document:
        is_above = each.start < example.start and each.region.evaluator is not run_console
        if is_above and (each.path, each.start) not in _begun:
            _begun.add((each.path, each.start))
            each.evaluate()
    _begun.add((example.path, example.start))


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), CodeBlockParser(language="console", evaluator=run_console)],
    patterns=["README.md", "docs/*.md"],
).pytest()
