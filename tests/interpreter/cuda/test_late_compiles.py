"""Whatever serving launches has been rehearsed, in every variant that Triton compiles; needs no GPU."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

LEAST_VARIANTS = 30
"""Of the smallest rehearsal."""


def test_no_family_compiles_a_kernel_while_serving() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.interpreter.cuda.variants"],
        env=environment,
        cwd=pathlib.Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: late for name, (_, late) in found.items() if late} == {}
    assert all(rehearsed > LEAST_VARIANTS for rehearsed, _ in found.values()), found
