"""Runs the page's modules under Node.js."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE

ENGINE = Path(str(files("nanoserve.entrypoints"))) / "page" / "static" / "engine"


def run_node(script: str, lines: list[bytes], folder: Path, *arguments: str) -> list[Any]:
    """What a script beside the modules of the engine view prints, as JSON lines, when it reads these lines.

    The playground's modules are in `./page/`.
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("the page's modules run under Node.js here, and there is no `node` on this machine")
    for module in ENGINE.glob("*.js"):
        shutil.copy(module, folder)
    shutil.copytree(ENGINE.parent, folder / "page", ignore=shutil.ignore_patterns("engine"))
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (folder / "script.js").write_text(script, encoding="utf-8")
    command = [node, "script.js", *arguments]
    done = subprocess.run(
        command, cwd=folder, input=b"\n".join(lines), capture_output=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]
