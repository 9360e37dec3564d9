"""Runs the page's modules under Node.js."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE

ENGINE = Path(str(files("nanoserve.entrypoints"))) / "page" / "static" / "engine"


@functools.cache
def workplace() -> tempfile.TemporaryDirectory[str]:
    """Scripts beside the modules of the engine view; the playground's modules are in `./page/`."""
    made = tempfile.TemporaryDirectory()
    folder = Path(made.name)
    for module in (*ENGINE.glob("*.js"), *Path(__file__).with_name("scripts").glob("*.js")):
        shutil.copy(module, folder / (module.name if module.parent == ENGINE else f"test_{module.name}"))
    shutil.copytree(ENGINE.parent, folder / "page", ignore=shutil.ignore_patterns("engine"))
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    return made


def run_node(script: str, *arguments: str, lines: Sequence[bytes] = ()) -> list[Any]:
    """What a script of `scripts/` prints, as JSON lines, when it reads these lines."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("the page's modules run under Node.js here, and there is no `node` on this machine")
    done = subprocess.run(
        [node, f"test_{script}.js", *arguments],
        cwd=workplace().name,
        input=b"\n".join(lines),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]
