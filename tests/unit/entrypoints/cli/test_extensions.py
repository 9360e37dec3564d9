"""Commands and settings of other packages: those that cannot be loaded take nothing else away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ENTRY_POINTS = """
[nanoserve.commands]
absent = no_such_module:command
plain = math:sqrt
[nanoserve.settings]
absent = no_such_module:Settings
plain = math:sqrt
"""


def test_extensions_that_cannot_be_loaded_are_one_line(tmp_path: Path) -> None:
    package = tmp_path / "stale-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: stale\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(ENTRY_POINTS)
    ended = subprocess.run(
        [sys.executable, "-m", "nanoserve", "--help"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    (line,) = ended.stderr.splitlines()
    assert line.startswith(
        "nanoserve: the package stale adds no_such_module:Settings, which cannot be loaded: "
    )
    assert "simulate" in ended.stdout
    assert "absent" not in ended.stdout
