"""What a benchmark measures, settled before anything slow happens; and the JSON file that says so with every number."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import sys
from collections.abc import Mapping
from typing import Any

import attrs

from nanoserve.entrypoints.bench.peers import check_peer
from nanoserve.entrypoints.bench.workloads import check_lengths
from nanoserve.entrypoints.compose.assembly import Survey
from nanoserve.entrypoints.compose.bootstrap import environment, survey
from nanoserve.entrypoints.compose.choices import choose_sizes
from nanoserve.entrypoints.compose.config import BenchSettings, Configuration, EngineSettings
from nanoserve.entrypoints.compose.stopwatch import Stopwatch
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.parameter import Door
from nanoserve.ports.sampling import SamplingParams, set_by


@attrs.frozen(kw_only=True)
class BenchSubject:
    """A model that was found, and everything that its measurements have in common."""

    found: Survey
    engine: EngineSettings
    bench: BenchSettings
    sampling: SamplingParams

    @property
    def title(self) -> str:
        """The model, its numbers and the device."""
        return f"{self.engine.model or 'the built-in model'}, {self.found.dtype} on {self.found.device}"


def choose_subject(
    configuration: Configuration, longest: int, *, rows: int = 0, watch: Stopwatch | None = None
) -> BenchSubject:
    """Refuse what cannot be measured, and make room for what can.

    Where the settings leave the context open, it becomes `longest`, the tokens of the longest sequence; where they
    leave the batch open, it grows to hold `rows` sequences. Raises `BadValueError` or `ModelLoadError`.
    """
    settings, bench = configuration.engine, configuration.bench
    check_peer(bench.vs)
    given = configuration.sampling
    found = survey(settings, watch)
    check_lengths(longest, settings.max_model_len, found.spec.max_position)
    sampling = SamplingParams(
        **{name: getattr(given, name) for name in set_by(Door.BENCH)},
        ignore_eos=True,
        detokenize=False,
    )
    if settings.max_model_len is None:
        settings = attrs.evolve(settings, max_model_len=max(longest, 2))
    max_num_seqs = choose_sizes(settings, found.spec, found.device).max_num_seqs
    if rows > max_num_seqs:
        if settings.max_num_seqs is not None:
            raise BadValueError("batch_sizes", f"{rows} is more than max_num_seqs, {max_num_seqs}")
        settings = attrs.evolve(settings, max_num_seqs=rows)
    return BenchSubject(found=found, engine=settings, bench=bench, sampling=sampling)


def head(benchmark: str) -> dict[str, Any]:
    """What every file begins with: the command as it was typed, without a server's key, and the machine."""
    arguments = [re.sub(r"^(--api-key=).*", r"\1***", each) for each in sys.argv[1:]]
    hidden = [
        "***" if before == "--api-key" else each
        for before, each in zip(["", *arguments], arguments, strict=False)
    ]
    return {
        "benchmark": benchmark,
        "command": shlex.join(["nanoserve", *hidden]),
        "machine": environment(),
    }


def describe(benchmark: str, subject: BenchSubject, facts: EngineFacts) -> dict[str, Any]:
    """The head of a file about an engine in this process."""
    return {
        **head(benchmark),
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
