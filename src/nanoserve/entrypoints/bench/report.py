"""The JSON file of a benchmark: every number, the machine, the software and the command that made them."""

from __future__ import annotations

import json
import pathlib
import shlex
import sys
from collections.abc import Mapping
from typing import Any

import attrs

from nanoserve.entrypoints.bench.subject import BenchSubject
from nanoserve.entrypoints.compose.bootstrap import environment
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.parameter import Door
from nanoserve.ports.sampling import set_by


def describe(benchmark: str, subject: BenchSubject, facts: EngineFacts) -> dict[str, Any]:
    """What every file begins with."""
    return {
        "benchmark": benchmark,
        "command": shlex.join(["nanoserve", *sys.argv[1:]]),
        "machine": environment(),
        "model": attrs.asdict(subject.found),
        "engine": attrs.asdict(subject.engine),
        "budget": {**facts.budget, "memory": dict(facts.memory)},
        "bench": attrs.asdict(subject.bench),
        "sampling": {name: getattr(subject.sampling, name) for name in set_by(Door.BENCH)},
    }


def check_writable(path: str | None) -> None:
    """Raise `OSError` before anything is measured where the file cannot be written."""
    if path is not None:
        pathlib.Path(path).open("a", encoding="utf-8").close()


def write_report(path: str | None, report: Mapping[str, Any]) -> None:
    """Write the file, if one is wanted."""
    if path is not None:
        text = json.dumps(report, indent=1, default=attrs.asdict)
        pathlib.Path(path).write_text(text + "\n", encoding="utf-8")
