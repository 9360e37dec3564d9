from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["gpu_steps", "gpu_tiles", "gpu_products"])
def test_what_needs_a_gpu_says_so_in_one_line(name: str) -> None:
    command, hidden = [sys.executable, "-m", f"benchmarks.{name}"], {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=hidden, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1:] == ["this benchmark needs a GPU, and torch finds none"]
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
