"""What `make` would run in a fresh clone, and the commands that its demo ends with."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess

import pytest

from nanoserve.entrypoints.cli.main import nanoserve

ROOT = pathlib.Path(__file__).parents[2]


def commands_of(target: str, folder: pathlib.Path) -> str:
    """The commands that make would run if there were no environment."""
    make = ["make", "--dry-run", f"VENV={folder}/venv", target]
    return subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("target", "with_dev"), [("demo", False), ("quick", True), ("check", True)])
def test_only_tests_and_checks_install_what_they_need(
    target: str, with_dev: bool, tmp_path: pathlib.Path
) -> None:
    commands = commands_of(target, tmp_path)
    assert ("dependency-groups" in commands) == with_dev
    assert len(re.findall(r"--constraint constraints.txt .*--editable \.$", commands, re.MULTILINE)) == 1


def test_the_demo_ends_with_two_commands_that_exist() -> None:
    following = re.findall(r"^  \$\(BIN\)/nanoserve (\w+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(following) == 2
    assert set(following) <= set(nanoserve.commands)


def test_whatever_the_caller_says_compiled_modules_are_kept() -> None:
    make = ["make", "--no-print-directory", "--eval", "shown:; @echo [$$PYTHONDONTWRITEBYTECODE]", "shown"]
    caller = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(make, cwd=ROOT, env=caller, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
