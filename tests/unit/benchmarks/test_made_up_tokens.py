"""The made-up tokens of benchmarks of grammars."""

from __future__ import annotations

import subprocess
import sys

WRITE = "from benchmarks.grammars import make_tokenizer; print(make_tokenizer(400).to_str())"


def test_every_process_makes_up_the_same_tokens() -> None:
    command = [sys.executable, "-c", WRITE]
    written = {subprocess.run(command, capture_output=True, check=True).stdout for _ in range(3)}
    assert len(written) == 1
