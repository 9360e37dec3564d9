"""`python -m benchmarks.offline` as a process: floors, profiles, and transformers beside us."""

from __future__ import annotations

import json
import pathlib

from tests.process.command import PYTHON, run
from tests.process.test_bench import without_progress


def test_the_laboratory_has_floors_and_profiles_beside_transformers(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "out.json"
    command = (*PYTHON, "benchmarks.offline", "shape:tiny", "--device", "cpu", "--json", str(path))
    load = ("--loads", "b8", "prefill", "4x640x320", "--num-prompts", "3", "--scale", "32", "--seeds", "2")
    beside = ("--vs", "hf", "--profile", "--bandwidth", "0.03", "--max-num-seqs", "4", "--paranoid")
    done = run(*load, *beside, command=command)
    assert done.returncode == 0, done.stderr.decode()
    assert without_progress(done.stderr) == b""
    shown = done.stdout.decode()
    for text in (
        "b8: 3 x 16 -> 8",
        "4x640x320: 3 x 20 -> 10",
        "hf tok/s",
        "of the floor",
        "aten::",
        "which must read",
        "(floor ",
    ):
        assert text in shown
    (report,) = json.loads(path.read_text())["models"]
    assert len(report["peer"]["seconds"]) == 9
    for load_report in report["loads"].values():
        assert load_report["summary"]["floor_fraction"]["median"] > 0
        assert load_report["summary"]["peer_tok_s"]["median"] > 0
        assert load_report["profile"]["rows"] == 3
    assert report["loads"]["prefill"]["profile"]["steps"] == 1
