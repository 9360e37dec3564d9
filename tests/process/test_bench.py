"""`nanoserve bench` as a process: shapes, and Ctrl-C."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import sys

from tests.patience import PATIENCE
from tests.process.command import run, started

TINY = ("--model", "shape:tiny", "--input-len", "12", "--output-len", "8")


def test_throughput_of_a_shape(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "out.json"
    done = run(
        *("bench", "throughput", *TINY, "--num-prompts", "5", "--seeds", "2", "--json", str(path)),
        "--paranoid",
    )
    assert done.returncode == 0, done.stderr.decode()
    assert without_progress(done.stderr) == b""
    assert "shape:tiny" in done.stdout.decode()
    report = json.loads(path.read_text())
    assert report["command"].startswith("nanoserve bench throughput --model shape:tiny")
    assert len(report["runs"]) == 2
    assert report["budget"]["max_model_len"] == 20


def test_ctrl_c_stops_a_run_in_one_line() -> None:
    """Its progress, which comes at once here, says when it runs; it would run for long."""
    program = (
        "from nanoserve.entrypoints.bench import report; report.PIPE_SECONDS = 0.1\n"
        "from nanoserve.entrypoints.cli import main; main()"
    )
    command = (sys.executable, "-c", program)
    long = ("--output-len", "4000", "--num-prompts", "500")
    with started("bench", "throughput", *TINY[:4], *long, command=command) as process:
        assert process.stderr is not None
        assert any(line.startswith(b"running ") for line in process.stderr)
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert (shown, without_progress(errors)) == (b"", b"nanoserve: interrupted\n")


def without_progress(errors: bytes) -> bytes:
    """What is said but for the lines of progress, which a slow machine has and a fast one has not."""
    return re.sub(rb"^(?:loading|running) .*\n", b"", errors, flags=re.MULTILINE)
