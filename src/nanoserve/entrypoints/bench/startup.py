"""`nanoserve bench startup`: what this very process did between its start and its first token."""

from __future__ import annotations

import os
import tempfile
from typing import Final

from nanoserve.entrypoints.bench.measurement import run_load
from nanoserve.entrypoints.bench.subject import check_writable, choose_subject, describe, write_report
from nanoserve.entrypoints.bench.tables import memory_table, phases_table, show
from nanoserve.entrypoints.bench.workloads import BenchWorkload, draw_load
from nanoserve.entrypoints.compose.bootstrap import assemble_bench
from nanoserve.entrypoints.compose.config import Configuration
from nanoserve.entrypoints.compose.machine import process_age
from nanoserve.entrypoints.compose.stopwatch import Phase, Stopwatch

DEFAULT_INPUT_LEN: Final = 128
CACHE_VARIABLE: Final = "TRITON_CACHE_DIR"


def run_startup(configuration: Configuration, *, json_file: str | None, cold: bool) -> None:
    """Start, generate one token, print the phases; `cold` compiles every kernel anew, into a folder of its own."""
    age = process_age()
    check_writable(json_file)
    with tempfile.TemporaryDirectory() as empty:
        if cold:
            os.environ[CACHE_VARIABLE] = empty
        _measure(configuration, json_file, [Phase("interpreter and command line", age)], cold=cold)


def _measure(configuration: Configuration, json_file: str | None, phases: list[Phase], *, cold: bool) -> None:
    watch = Stopwatch()
    workload = BenchWorkload(
        name="startup",
        num_prompts=1,
        input_len=configuration.bench.input_len or DEFAULT_INPUT_LEN,
        output_len=1,
    )
    subject = choose_subject(configuration, workload.longest, watch=watch)
    parts = assemble_bench(subject.engine, watch)
    load = draw_load(workload, vocab_size=parts.spec.vocab_size, seed=0)
    run_load(parts, load, subject.sampling)
    watch.lap(f"first token of a prompt of {workload.input_len}")
    phases += [each for each in watch.phases if each.seconds >= 0.005]
    show(f"{subject.title}; {'no' if cold else 'with a'} cache of compiled kernels", phases_table(phases))
    if parts.facts.memory:
        show(memory_table(parts.facts.memory))
    report = describe("startup", subject, parts.facts)
    write_report(json_file, report | {"cold": cold, "phases": phases})
