"""`nanoserve bench latency`: batches that begin together, and how long each token takes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from nanoserve.entrypoints.bench.floors import choose_ceilings, decode_step_bytes
from nanoserve.entrypoints.bench.measurement import BenchRun, RunSpread, run_loads, spread_of
from nanoserve.entrypoints.bench.peers import PeerRuns, run_peer
from nanoserve.entrypoints.bench.profiling import profile_load
from nanoserve.entrypoints.bench.subject import (
    BenchSubject,
    check_writable,
    choose_subject,
    describe,
    write_report,
)
from nanoserve.entrypoints.bench.tables import batches_table, doing, profile_table, profile_title, show
from nanoserve.entrypoints.bench.workloads import BenchLoad, BenchWorkload, draw_loads
from nanoserve.entrypoints.compose.assembly import BenchParts, Ceilings
from nanoserve.entrypoints.compose.bootstrap import assemble_bench
from nanoserve.entrypoints.compose.config import BenchSettings, Configuration
from nanoserve.ports.errors import BadValueError

DEFAULT_INPUT_LEN: Final = 128
DEFAULT_OUTPUT_LEN: Final = 128


def run_latency(configuration: Configuration, *, json_file: str | None, profile: bool) -> None:
    """Measure, print, and write the file; raises whatever goes wrong."""
    workloads = _choose_workloads(configuration.bench)
    largest = max(workloads)
    check_writable(json_file)
    subject = choose_subject(configuration, workloads[largest].longest, rows=largest)
    bench, vocab_size = subject.bench, subject.found.spec.vocab_size
    if largest > subject.max_num_seqs:
        raise BadValueError("batch_sizes", f"{largest} is more than max_num_seqs, {subject.max_num_seqs}")
    loads = {batch: draw_loads(each, bench, vocab_size) for batch, each in workloads.items()}
    peer = None if bench.vs is None else _run_peer(bench.vs, subject, loads)
    with doing("loading the model"):
        parts = assemble_bench(subject.engine)
        ceilings = choose_ceilings(bench, parts)
    runs: dict[int, list[BenchRun]] = {}
    for batch, each in loads.items():
        with doing(f"running {batch} at once"):
            runs[batch] = run_loads(parts, each, subject.sampling)[bench.warmup :]
    summary = {batch: _summary(each, parts, ceilings, workloads[batch]) for batch, each in runs.items()}
    theirs = {} if peer is None else _peer_summary(peer, loads, bench.warmup)
    title = f"{subject.title}; {workloads[largest].input_len} -> {workloads[largest].output_len}, {bench.seeds} seeds"
    show(title, batches_table(summary, theirs, bench.vs))
    report: dict[str, Any] = describe("latency", subject, parts.facts) | {
        "ceilings": ceilings,
        "runs": {batch: [_raw(run) for run in each] for batch, each in runs.items()},
        "summary": summary,
        "peer": peer,
        "peer_summary": theirs,
    }
    if profile:
        report["profiles"] = {}
        for batch, workload in workloads.items():
            load = draw_loads(workload, attrs.evolve(bench, seeds=1, warmup=len(loads[batch])), vocab_size)[
                -1
            ]
            found = profile_load(parts, load, subject.sampling, ceilings)
            show(profile_title(found), profile_table(found))
            report["profiles"][batch] = found
    write_report(json_file, report)


def _choose_workloads(bench: BenchSettings) -> dict[int, BenchWorkload]:
    """One per batch size."""
    return {
        batch: BenchWorkload(
            name="batch",
            num_prompts=batch,
            input_len=bench.input_len or DEFAULT_INPUT_LEN,
            output_len=bench.output_len or DEFAULT_OUTPUT_LEN,
        )
        for batch in bench.batch_sizes
    }


def _summary(
    runs: Sequence[BenchRun], parts: BenchParts, ceilings: Ceilings | None, workload: BenchWorkload
) -> dict[str, RunSpread]:
    """Every figure over the runs; the fraction of the floor is that of the median gap between two tokens."""
    figures = [run.latency_figures() for run in runs]
    summary = {name: spread_of(each[name] for each in figures) for name in figures[0]}
    if ceilings is not None and "itl_p50_ms" in summary:
        contexts = [workload.input_len + workload.output_len // 2] * workload.num_prompts
        floor_ms = 1e3 * decode_step_bytes(parts, contexts) / ceilings.bandwidth
        summary["floor_fraction"] = spread_of(floor_ms / each["itl_p50_ms"] for each in figures)
    return summary


def _run_peer(name: str, subject: BenchSubject, loads: Mapping[int, Sequence[BenchLoad]]) -> PeerRuns:
    with doing(f"running {name}"):
        every = list(itertools.chain.from_iterable(loads.values()))
        return run_peer(name, subject.found, subject.engine, subject.sampling, every)


def _peer_summary(
    peer: PeerRuns, loads: Mapping[int, Sequence[BenchLoad]], warmup: int
) -> dict[int, dict[str, RunSpread]]:
    seconds = iter(peer.seconds)
    summary = {}
    for batch, each in loads.items():
        measured = list(zip(itertools.islice(seconds, len(each)), each, strict=True))[warmup:]
        summary[batch] = {
            "e2e_p50_ms": spread_of(1e3 * taken for taken, _ in measured),
            "output_tok_s": spread_of(load.num_output_tokens / taken for taken, load in measured),
        }
    return summary


def _raw(run: BenchRun) -> dict[str, Any]:
    return {
        "seed": run.load.seed,
        "cached_tokens": sum(each.num_cached_tokens for each in run.ends),
        "figures": run.latency_figures(),
        "ttft_seconds": run.times_to_first_token,
        "turn_seconds": [now[0] - then[0] for then, now in itertools.pairwise(run.marks)],
    }
