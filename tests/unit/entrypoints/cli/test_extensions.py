"""Commands and settings of other packages: those that cannot be loaded take nothing else away."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nanoserve

NOT_THERE = """
[nanoserve.commands]
absent = no_such_module:command
plain = math:sqrt
[nanoserve.settings]
absent = no_such_module:Settings
plain = math:sqrt
"""
TAKEN = """
[nanoserve.commands]
bench serve = greedy:serve
serve = greedy:serve
"""
GREEDY = """
import click

@click.command()
def serve() -> None:
    print("not the server")
"""


def run_with(folder: Path, name: str, entry_points: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line beside a package of that name, which is in the folder."""
    package = folder / f"{name}-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(entry_points)
    return subprocess.run(
        [sys.executable, "-m", "nanoserve", *arguments],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )


def test_extensions_that_cannot_be_loaded_are_one_line(tmp_path: Path) -> None:
    ended = run_with(tmp_path, "stale", NOT_THERE, "--help")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(
        "nanoserve: the package stale adds no_such_module:Settings, which cannot be loaded: "
    )
    assert "simulate" in ended.stdout
    assert "absent" not in ended.stdout


@pytest.mark.parametrize("group", [(), ("bench",)])
def test_an_extension_replaces_no_built_in_command(tmp_path: Path, group: tuple[str, ...]) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    ended = run_with(tmp_path, "greedy", TAKEN, *group, "serve", "--help")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("nanoserve: the package greedy adds greedy:serve, which cannot be loaded: ")
    assert "serve" in line.partition("loaded: ")[2]
    assert "Examples:" in ended.stdout


def test_without_the_packages_that_it_needs_the_command_line_is_one_line() -> None:
    ended = subprocess.run(
        [sys.executable, "-S", "-m", "nanoserve", "serve"],
        cwd=Path(nanoserve.__file__).parents[1],
        env={},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    (line,) = ended.stderr.splitlines()
    assert re.match(r"nanoserve: the package \w+ is not installed; ", line)
    assert "pip install ." in line
    assert (ended.returncode, ended.stdout) == (2, "")
