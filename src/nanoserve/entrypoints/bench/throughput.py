"""`nanoserve bench throughput`: one load at once, and how many tokens per second come out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from nanoserve.entrypoints.bench.floors import choose_ceilings, floor_of
from nanoserve.entrypoints.bench.measurement import BenchRun, RunSpread, run_loads, spread_of
from nanoserve.entrypoints.bench.peers import PeerRuns, run_peer
from nanoserve.entrypoints.bench.profiling import profile_load
from nanoserve.entrypoints.bench.subject import check_writable, choose_subject, describe, write_report
from nanoserve.entrypoints.bench.tables import doing, figures_table, profile_table, profile_title, show
from nanoserve.entrypoints.bench.workloads import BenchLoad, choose_workload, draw_load, draw_loads
from nanoserve.entrypoints.compose.assembly import Ceilings
from nanoserve.entrypoints.compose.bootstrap import assemble_bench
from nanoserve.entrypoints.compose.config import Configuration


def run_throughput(configuration: Configuration, *, json_file: str | None, profile: bool) -> None:
    """Measure, print, and write the file; raises whatever goes wrong."""
    workload = choose_workload(configuration.bench)
    check_writable(json_file)
    subject = choose_subject(configuration, workload.longest)
    bench, sampling = subject.bench, subject.sampling
    loads = draw_loads(workload, bench, subject.found.spec.vocab_size)
    peer = None
    if bench.vs is not None:
        with doing(f"running {bench.vs}"):
            peer = run_peer(bench.vs, subject.found, subject.engine, sampling, loads)
    with doing("loading the model"):
        parts = assemble_bench(subject.engine)
        ceilings = choose_ceilings(bench, parts)
    with doing("running"):
        runs = run_loads(parts, loads, sampling)[bench.warmup :]
    late_compiles = parts.engine.counts().runner.late_compiles
    floors = [] if ceilings is None else [floor_of(run.load, parts, ceilings) for run in runs]
    summary = _summary(runs, [each.seconds for each in floors])
    theirs = {} if peer is None else _peer_summary(peer, loads, bench.warmup)
    title = f"{subject.title}; {workload.description}, {bench.seeds} seeds"
    show(title, figures_table(summary, theirs, bench.vs))
    report: dict[str, Any] = describe("throughput", subject, parts.facts) | {
        "workload": attrs.asdict(workload),
        "ceilings": ceilings,
        "floors": floors,
        "runs": [_raw(run) for run in runs],
        "summary": summary,
        "late_compiles": late_compiles,
        "peer": peer,
        "peer_summary": theirs,
    }
    if ceilings is not None:
        show(_say_ceilings(ceilings))
    if late_compiles:
        show(f"{late_compiles} kernels were not ready when a step needed them, warm-up included")
    if profile:
        last = draw_load(workload, vocab_size=subject.found.spec.vocab_size, seed=len(loads))
        found = profile_load(parts, last, sampling, ceilings)
        show(profile_title(found), profile_table(found))
        report["profile"] = found
    write_report(json_file, report)


def _summary(runs: Sequence[BenchRun], floors: Sequence[float]) -> dict[str, RunSpread]:
    """Every figure over the runs, and how close they came to their floors."""
    figures = [run.figures() for run in runs]
    summary = {
        name: spread_of(each[name] for each in figures)
        for name in figures[0]
        if all(name in each for each in figures)
    }
    if floors:
        fractions = [floor / run.seconds for floor, run in zip(floors, runs, strict=True)]
        summary |= {"floor_seconds": spread_of(floors), "floor_fraction": spread_of(fractions)}
    return summary


def _peer_summary(peer: PeerRuns, loads: Sequence[BenchLoad], warmup: int) -> Mapping[str, RunSpread]:
    measured = list(zip(peer.seconds, loads, strict=True))[warmup:]
    return {
        "output_tok_s": spread_of(load.num_output_tokens / seconds for seconds, load in measured),
        "total_tok_s": spread_of(
            (load.num_prompt_tokens + load.num_output_tokens) / seconds for seconds, load in measured
        ),
        "seconds": spread_of(seconds for seconds, _ in measured),
    }


def _raw(run: BenchRun) -> dict[str, Any]:
    return {
        "seed": run.load.seed,
        "prompt_tokens": run.load.num_prompt_tokens,
        "output_tokens": run.load.num_output_tokens,
        "cached_tokens": sum(each.num_cached_tokens for each in run.ends),
        "figures": run.figures(),
        "ttft_seconds": run.times_to_first_token,
        "turn_seconds": [now[0] - then[0] for then, now in itertools.pairwise(run.marks)],
        "turn_tokens": [now[1] - then[1] for then, now in itertools.pairwise(run.marks)],
        "turn_prompt_tokens": [now[2] - then[2] for then, now in itertools.pairwise(run.marks)],
        "turn_waited_seconds": [now[3] - then[3] for then, now in itertools.pairwise(run.marks)],
    }


def _say_ceilings(ceilings: Ceilings) -> str:
    text = f"floor: reads at {ceilings.bandwidth / 1e12:.3g} TB/s"
    return text if ceilings.compute is None else f"{text}, products at {ceilings.compute / 1e12:.4g} TFLOP/s"
