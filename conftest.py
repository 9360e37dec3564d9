"""For every test: Ctrl-C works, and the code blocks of README.md and docs/ are tests: Python as it stands, console as shell."""

from __future__ import annotations

import fnmatch
import os
import pathlib
import signal
import subprocess
import sys

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


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), CodeBlockParser(language="console", evaluator=run_console)],
    patterns=["README.md", "docs/*.md"],
).pytest()
