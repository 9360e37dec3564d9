"""`nanoserve bench throughput` and `latency`, once their settings are read: measure, print, write the file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import attrs

from nanoserve.entrypoints.bench.floors import choose_ceilings, decode_step_bytes, expected_experts, floor_of
from nanoserve.entrypoints.bench.measurement import BenchRun, run_load, spread_of, summarize
from nanoserve.entrypoints.bench.peers import PeerRuns, run_peer
from nanoserve.entrypoints.bench.profiling import StepProfile, profile_load
from nanoserve.entrypoints.bench.subject import (
    BenchSubject,
    check_writable,
    choose_subject,
    describe,
    write_report,
)
from nanoserve.entrypoints.bench.tables import (
    batches_table,
    doing,
    figures_table,
    profile_table,
    profile_title,
    show,
)
from nanoserve.entrypoints.bench.workloads import (
    BenchWorkload,
    choose_workload,
    draw_load,
    draw_loads,
)
from nanoserve.entrypoints.compose.assembly import BenchParts, Ceilings
from nanoserve.entrypoints.compose.bootstrap import assemble_bench
from nanoserve.entrypoints.compose.config import Configuration
from nanoserve.entrypoints.compose.printable import counted
from nanoserve.ports.model_spec import ModelSpec

DEFAULT_INPUT_LEN: Final = 128
DEFAULT_OUTPUT_LEN: Final = 128


@attrs.frozen(kw_only=True)
class MeasuredWorkload:
    """A workload and its runs; the loads for warming up, and what the peer took for them, are left out.

    Attributes:
        peer: the peer's seconds for the load of each run; empty where there is no peer.
    """

    workload: BenchWorkload
    runs: Sequence[BenchRun]
    peer: Sequence[float]

    def peer_figures(self) -> list[dict[str, float]]:
        """The peer's numbers of each run, named like ours."""
        return [
            {
                "output_tok_s": run.load.num_output_tokens / seconds,
                "total_tok_s": (run.load.num_prompt_tokens + run.load.num_output_tokens) / seconds,
                "seconds": seconds,
            }
            for run, seconds in zip(self.runs, self.peer, strict=True)
        ]


@attrs.frozen(kw_only=True)
class Measurements:
    """What `throughput` and `latency` have in common; `measured` is in the order of the workloads."""

    subject: BenchSubject
    parts: BenchParts
    ceilings: Ceilings | None
    peer: PeerRuns | None
    measured: Sequence[MeasuredWorkload]

    def report(self, benchmark: str, **numbers: Any) -> dict[str, Any]:
        """The content of the JSON file."""
        common = describe(benchmark, self.subject, self.parts.facts)
        return {**common, "ceilings": self.ceilings, "peer": self.peer, **numbers}

    def profile(self, workload: BenchWorkload) -> StepProfile:
        """Profile prompts that no run had, and show it."""
        seed = self.subject.bench.warmup + self.subject.bench.seeds
        load = draw_load(workload, vocab_size=self.parts.spec.vocab_size, seed=seed)
        found = profile_load(self.parts, load, self.subject.sampling, self.ceilings)
        show(profile_title(found), profile_table(found))
        return found


def run_throughput(configuration: Configuration, *, json_file: str | None, profile: bool) -> None:
    """One load at once: how many tokens per second come out. Raises whatever goes wrong."""
    workload = choose_workload(configuration.bench)
    check_writable(json_file)
    subject = choose_subject(configuration, workload.longest)
    done = _measure(subject, [workload])
    ceilings, (measured,) = done.ceilings, done.measured
    late_compiles = done.parts.engine.counts().runner.late_compiles
    floors = [floor_of(run.load, done.parts, ceilings) for run in measured.runs] if ceilings else []
    summary = summarize([run.figures() for run in measured.runs])
    if floors:
        fractions = [floor.seconds / run.seconds for floor, run in zip(floors, measured.runs, strict=True)]
        summary["floor_seconds"] = spread_of(floor.seconds for floor in floors)
        summary["floor_fraction"] = spread_of(fractions)
    theirs = summarize(measured.peer_figures()) if measured.peer else {}
    title = f"{subject.title}; {workload.description}, {counted(subject.bench.seeds, 'seed')}"
    show(title, figures_table(summary, theirs, subject.bench.vs))
    if ceilings is not None:
        text = f"floor: reads at {ceilings.bandwidth / 1e12:.3g} TB/s"
        show(text + (f", products at {ceilings.compute / 1e12:.4g} TFLOP/s" if ceilings.compute else ""))
        _show_experts(done.parts.spec, [floors[0].decode_rows])
    if late_compiles:
        late = counted(late_compiles, "kernel")
        show(f"compiled late: {late}, not ready when a step needed them, warm-up included")
    report = done.report(
        "throughput",
        workload=attrs.asdict(workload),
        floors=floors,
        runs=[_record(run, run.figures()) for run in measured.runs],
        summary=summary,
        late_compiles=late_compiles,
        peer_summary=theirs,
    )
    if profile:
        report["profile"] = done.profile(workload)
    write_report(json_file, report)


def _show_experts(spec: ModelSpec, batches: Sequence[float]) -> None:
    """What floors of these many rows take a mixture of experts to read."""
    for rows in batches:
        if (text := expected_experts(spec, rows)) is not None:
            show(text)


def run_latency(configuration: Configuration, *, json_file: str | None, profile: bool) -> None:
    """Batches that begin together: how long each token takes. Raises whatever goes wrong."""
    bench = configuration.bench
    workload = BenchWorkload(
        name="batch",
        num_prompts=max(bench.batch_sizes),
        input_len=bench.input_len or DEFAULT_INPUT_LEN,
        output_len=bench.output_len or DEFAULT_OUTPUT_LEN,
    )
    check_writable(json_file)
    subject = choose_subject(configuration, workload.longest, rows=workload.num_prompts)
    done = _measure(
        subject, [attrs.evolve(workload, num_prompts=batch) for batch in dict.fromkeys(bench.batch_sizes)]
    )
    measured = {each.workload.num_prompts: each for each in done.measured}
    summary, theirs = {}, {}
    for batch, each in measured.items():
        figures = [run.latency_figures() for run in each.runs]
        summary[batch] = summarize(figures)
        if done.ceilings is not None and "itl_p50_ms" in figures[0]:
            contexts = [workload.input_len + workload.output_len // 2] * batch
            floor_ms = 1e3 * decode_step_bytes(done.parts, contexts) / done.ceilings.bandwidth
            summary[batch]["floor_fraction"] = spread_of(floor_ms / one["itl_p50_ms"] for one in figures)
        if each.peer:
            runs = each.peer_figures()
            durations = spread_of(1e3 * run["seconds"] for run in runs)
            theirs[batch] = {"e2e_p50_ms": durations, "output_tok_s": summarize(runs)["output_tok_s"]}
    title = f"{subject.title}; {workload.input_len} -> {workload.output_len}, {counted(bench.seeds, 'seed')}"
    show(title, batches_table(summary, theirs, bench.vs))
    _show_experts(done.parts.spec, list(measured))
    report = done.report(
        "latency",
        runs={
            batch: [_record(run, run.latency_figures()) for run in each.runs]
            for batch, each in measured.items()
        },
        summary=summary,
        peer_summary=theirs,
    )
    if profile:
        report["profiles"] = {batch: done.profile(each.workload) for batch, each in measured.items()}
    write_report(json_file, report)


def _measure(subject: BenchSubject, workloads: Sequence[BenchWorkload]) -> Measurements:
    """Run everything: first the peer, whose process has ended when ours takes the memory."""
    bench = subject.bench
    loads = [draw_loads(each, bench, subject.found.spec.vocab_size) for each in workloads]
    peer = None
    if bench.vs is not None:
        with doing(f"running {bench.vs}"):
            every = [load for each in loads for load in each]
            peer = run_peer(bench.vs, subject.found, subject.engine, subject.sampling, every)
    with doing("loading the model"):
        parts = assemble_bench(subject.engine)
        ceilings = choose_ceilings(bench, parts)
    measured, peer_seconds = [], iter(peer.seconds if peer else ())
    for workload, each in zip(workloads, loads, strict=True):
        with doing(f"running {workload.description}"):
            runs = [run_load(parts, load, subject.sampling) for load in each]
        theirs = list(islice(peer_seconds, len(each)))
        measured.append(
            MeasuredWorkload(workload=workload, runs=runs[bench.warmup :], peer=theirs[bench.warmup :])
        )
    return Measurements(subject=subject, parts=parts, ceilings=ceilings, peer=peer, measured=measured)


def _record(run: BenchRun, figures: dict[str, float]) -> dict[str, Any]:
    return {
        "seed": run.load.seed,
        "prompt_tokens": run.load.num_prompt_tokens,
        "output_tokens": run.load.num_output_tokens,
        "cached_tokens": sum(each.num_cached_tokens for each in run.ends),
        "figures": figures,
        "ttft_seconds": run.times_to_first_token,
        "turn_seconds": run.turns(0),
        "turn_tokens": run.turns(1),
        "turn_prompt_tokens": run.turns(2),
        "turn_waited_seconds": run.turns(3),
    }
