"""Loads through the engine without HTTP and text: beside the floor, beside another engine, and kernel by kernel.

    python -m benchmarks.offline MODEL ... [--loads single b8 fixed prefill 256x1000x192] [--num-prompts N] [--input-len N] [--output-len N]
                                 [--seeds 3] [--warmup 1] [--scale 1] [--bandwidth TB/S] [--compute TFLOP/S]
                                 [--vs hf | vllm | lmdeploy] [--profile] [--idle] [--json FILE] [OPTIONS OF THE ENGINE, as of nanoserve serve]

Each model, such as shape:llama-3.2-1b or built-in, has one engine for all loads, and each load its own row: medians of the runs that count,
with the least and the most. 256x1000x192 are 256 prompts of 1,000 tokens with 192 more each. `--scale` divides all lengths. The floor is known on a GPU, and elsewhere with `--bandwidth`.
`system-prompt` and `chat` are classes of `benchmarks.traffic_classes`, all at once. `--idle` says how long the GPU waited in a whole load.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import attrs
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.ceilings import Ceilings, choose_ceilings
from benchmarks.floors import FloorModel, LoadFloor, expected_experts
from benchmarks.peers.running import PEERS, check_peer, run_peer
from benchmarks.traffic_classes import CHAT, SYSTEM_PROMPT, TrafficClass, draw_sessions
from nanoserve.entrypoints.bench.command import BenchSubject, choose_subject, load_model, measure
from nanoserve.entrypoints.bench.measurement import (
    WORKLOADS,
    BenchLoad,
    BenchRun,
    BenchWorkload,
    run_load,
    summarize,
)
from nanoserve.entrypoints.bench.report import check_writable, doing, number, show, table, write_report
from nanoserve.entrypoints.compose.assembly import BenchParts
from nanoserve.entrypoints.compose.config.configuration import Configuration, read_configuration
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.errors import NanoserveError


@attrs.frozen(kw_only=True)
class ClassWorkload(BenchWorkload):
    """A class of traffic, all of it at once. Lengths are the class's own."""

    traffic: TrafficClass

    @property
    def longest(self) -> int:
        """The most tokens that one of its sequences can have."""
        return self._scaled.longest

    def draw(self, *, vocab_size: int, seed: int) -> BenchLoad:  # noqa: ARG002 - classes have ids of their own
        """The first turns of as many sessions; the same ids in every vocabulary."""
        sessions = draw_sessions(self._scaled, self.num_prompts, seed)
        turns = [each.turns[0] for each in sessions]
        return BenchLoad(
            seed=seed,
            prompts=[each.tokens for each in turns],
            output_lengths=[each.output_len for each in turns],
        )

    @property
    def _scaled(self) -> TrafficClass:
        return attrs.evolve(self.traffic, input_len=self.input_len, output_len=self.output_len)


def _of_class(traffic: TrafficClass, num_prompts: int) -> ClassWorkload:
    return ClassWorkload(
        name=traffic.name,
        num_prompts=num_prompts,
        input_len=traffic.input_len,
        output_len=traffic.output_len,
        traffic=traffic,
    )


LOADS: Final[Mapping[str, BenchWorkload]] = {
    "single": BenchWorkload(name="single", num_prompts=1, input_len=128, output_len=512),
    "b8": BenchWorkload(name="b8", num_prompts=8, input_len=512, output_len=256),
    **WORKLOADS,
    "system-prompt": _of_class(SYSTEM_PROMPT, 64),
    "chat": _of_class(CHAT, 300),
}
FAMILY: Final = ("single", "b8", "fixed", "prefill")
"""The loads by which families of models are compared."""
COLUMNS: Final = {
    "output_tok_s": "output tok/s",
    "prompt_tok_s": "prompt tok/s",
    "decode_step_ms": "ms per decode step",
    "host_step_us": "host us",
    "floor_fraction": "of the floor",
    "peer_tok_s": "{vs} tok/s",
    "peer_ratio": "ratio",
}
STEPS: Final = 16
"""Decode steps to profile, where the load has as many."""
MOST_KERNELS: Final = 25
LONG_GAP: Final = 10.0
"""Microseconds without a kernel that are more than a launch within a graph."""


def run_model(
    configuration: Configuration, workloads: Sequence[BenchWorkload], given: argparse.Namespace
) -> dict[str, Any]:
    """Measure every load on one engine, after the other engine, whose process has ended by then; print and return all numbers."""
    subject = choose_subject(configuration, max(each.longest for each in workloads))
    bench, vocab_size = subject.bench, subject.found.spec.vocab_size
    seeds = range(bench.warmup + bench.seeds)
    theirs = None
    if given.vs is not None:
        loads = [each.draw(vocab_size=vocab_size, seed=seed) for each in workloads for seed in seeds]
        with doing(f"running {given.vs}"):
            theirs = run_peer(given.vs, subject.found, subject.engine, subject.sampling, loads)
    peer_seconds = iter(theirs.seconds if theirs else ())
    began = time.perf_counter()
    parts = load_model(subject)
    ready = time.perf_counter() - began
    ceilings = choose_ceilings(given.bandwidth, given.compute, subject.found.device, subject.found.dtype)
    others = parts.engine.counts().runner.late_compiles  # of the kernel that measured how fast memory is read
    model = FloorModel(
        spec=parts.spec, dtype=subject.found.dtype, keeps_stored=subject.found.device == "cuda"
    )
    rows: dict[str, dict[str, dict[str, float]]] = {}
    report: dict[str, Any] = {"ceilings": ceilings, "peer": theirs, "loads": {}}
    for workload in workloads:
        runs = measure(parts, subject, workload)
        most = parts.facts.max_num_seqs
        floors = [model.floor_of(run.load, most, ceilings) for run in runs] if ceilings else []
        seconds = list(islice(peer_seconds, len(seeds)))[bench.warmup :]
        figures = figures_of(runs, floors, seconds)
        rows[workload.description] = summarize(figures)
        records = [run.record() | {"figures": found} for run, found in zip(runs, figures, strict=True)]
        report["loads"][workload.name] = {
            "floors": floors,
            "runs": records,
            "summary": rows[workload.description],
        }
        if floors and (said := expected_experts(parts.spec, floors[0].decode_rows)):
            show(f"{workload.name}: {said}")
    show(f"{subject.title}; ready in {ready:.1f} s", _rows_table(rows, given.vs))
    if ceilings is not None:
        compute = f", products at {ceilings.compute / 1e12:.4g} TFLOP/s" if ceilings.compute else ""
        show(f"floor: reads at {ceilings.bandwidth / 1e12:.3g} TB/s{compute}")
    if late := parts.engine.counts().runner.late_compiles - others:
        show(f"compiled late: {late}")
    for workload in workloads if given.profile else ():
        load = workload.draw(vocab_size=vocab_size, seed=len(seeds))
        report["loads"][workload.name]["profile"] = profile_load(parts, subject, load, model, ceilings)
    for workload in workloads if given.idle else ():
        load = workload.draw(vocab_size=vocab_size, seed=len(seeds) + 1)
        report["loads"][workload.name]["idle"] = measure_idle(parts, subject, load)
    return subject.describe("offline", parts.facts) | report


def figures_of(
    runs: Sequence[BenchRun], floors: Sequence[LoadFloor], peer_seconds: Sequence[float]
) -> list[dict[str, float]]:
    """The figures of each run, beside its floor and what the other engine took, where these are known."""
    figures = [run.figures() for run in runs]
    for run, found, floor in zip(runs, figures, floors, strict=False):
        found["floor_fraction"] = floor.seconds / run.seconds
    for run, found, taken in zip(runs, figures, peer_seconds, strict=False):
        found["peer_tok_s"] = run.load.num_output_tokens / taken
        found["peer_ratio"] = taken / run.seconds
    return figures


def _rows_table(rows: Mapping[str, Mapping[str, Mapping[str, float]]], vs: str | None) -> Any:
    names = [name for name in COLUMNS if any(name in each for each in rows.values())]
    cells = [
        [load, *(_spread(found[name]) if name in found else "" for name in names)]
        for load, found in rows.items()
    ]
    return table(["load", *(COLUMNS[name].format(vs=vs) for name in names)], cells)


def _spread(found: Mapping[str, float]) -> str:
    median, least, most = map(number, found.values())
    return median + (f" ({least}-{most})" if least != most else "")


def profile_load(
    parts: BenchParts, subject: BenchSubject, load: BenchLoad, model: FloorModel, ceilings: Ceilings | None
) -> dict[str, Any]:
    """Show the kernels (on a CPU: operations) of steady decode steps of a load, or of its prompts where next to nothing is decoded."""
    engine, most = parts.engine, parts.facts.max_num_seqs
    load = attrs.evolve(load, prompts=load.prompts[:most], output_lengths=load.output_lengths[:most])
    requests = load.requests(subject.sampling)
    turns = min(STEPS, min(load.output_lengths) - 2)
    for each in requests:
        engine.add(each)
    rows, said = len(requests), ""
    if turns > 0:
        _read_prompts(engine)
        alive = engine.living()
        contexts = [each.num_prompt_tokens + each.num_generated_tokens + turns // 2 for each in alive]
        rows, read = len(alive), model.decode_step_bytes(contexts)
        said = f", which must read {read / 1e9:.3f} GB"
        said += f" (floor {1e3 * read / ceilings.bandwidth:.3f} ms)" if ceilings else ""

    def work() -> None:
        for _ in range(turns):
            engine.turn()
        if turns <= 0:
            _read_prompts(engine)

    before = engine.counts().steps
    kernels = profile_kernels(work, on_gpu=subject.found.device == "cuda")
    steps = engine.counts().steps - before
    for each in requests:
        engine.abort(each.request_id)
    while engine.has_work:
        engine.turn()
    total = sum(seconds for *_, seconds in kernels)
    cells = [
        (name, f"{calls / steps:.1f}", f"{1e6 * seconds / calls:.1f}", f"{1e6 * seconds / steps:.1f}", f"{seconds / total:.1%}")
        for name, calls, seconds in kernels[:MOST_KERNELS]
    ]  # fmt: skip
    show(f"{steps} steps of {rows} rows: {1e3 * total / steps:.3f} ms of kernels per step{said}")
    show(table(["kernel", "calls/step", "us/call", "us/step", "share"], cells))
    return {"steps": steps, "rows": rows, "kernels": kernels}


def profile_kernels(work: Any, *, on_gpu: bool) -> list[tuple[str, int, float]]:
    """Run `work` and return (name, calls, seconds) of each kernel on a GPU or operation on a CPU, longest first.

    An operation's seconds do not hold those of the operations that it calls. Kernels that overlap count in full.
    """
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity], acc_events=True) as recorded:
        work()
        if on_gpu:
            torch.cuda.synchronize()
    rows = [
        (each.key, each.count, (each.self_device_time_total if on_gpu else each.self_cpu_time_total) / 1e6)
        for each in recorded.key_averages()
        if each.device_type.name == ("CUDA" if on_gpu else "CPU")
    ]
    return sorted((row for row in rows if row[2] > 0), key=lambda row: -row[2])


def measure_idle(parts: BenchParts, subject: BenchSubject, load: BenchLoad) -> dict[str, float]:
    """Show how long nothing ran on the GPU between the first kernel and the last of a whole load.

    The profiler makes the host slower, so what it finds is an upper bound.
    """
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as recorded:
        run_load(parts.engine, load, subject.sampling)
        torch.cuda.synchronize()
    spans = sorted(
        (each.time_range.start, each.time_range.end)
        for each in recorded.events()
        if each.device_type.name == "CUDA"
    )
    gaps, until = [], spans[0][0]
    for begin, end in spans:
        if begin > until:
            gaps.append(begin - until)
        until = max(until, end)
    whole = until - spans[0][0]
    long = [each for each in gaps if each >= LONG_GAP]
    found = {"seconds": whole / 1e6, "idle": sum(gaps) / whole, "idle_in_long_gaps": sum(long) / whole}
    show(
        f"{found['seconds']:.3f} s on the GPU: idle {found['idle']:.1%}, "
        f"of it {found['idle_in_long_gaps']:.1%} in {len(long)} gaps of {LONG_GAP:g} us and more"
    )
    return found


def _read_prompts(engine: EngineHandle) -> None:
    while any(not each.num_generated_tokens for each in engine.living()):
        engine.turn()


def _workload(name: str) -> BenchWorkload:
    """One of the loads, or prompts x tokens of each x tokens of each answer; `ValueError` otherwise."""
    if name in LOADS:
        return LOADS[name]
    prompts, ins, outs = map(int, name.split("x"))
    return BenchWorkload(name=name, num_prompts=prompts, input_len=ins, output_len=outs)


def main() -> None:
    """Measure each model in turn; an error is one line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.offline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="+")
    parser.add_argument("--loads", nargs="+", type=_workload, default=[LOADS[name] for name in FAMILY])
    for name in ("num-prompts", "input-len", "output-len"):
        parser.add_argument(f"--{name}", type=int, help="of every load")
    parser.add_argument("--seeds", default="3")
    parser.add_argument("--warmup", default="1")
    parser.add_argument("--temperature", default="0.6")
    parser.add_argument("--scale", type=int, default=1, help="divides all lengths")
    parser.add_argument("--bandwidth", type=float, help="terabytes per second, for the floor")
    parser.add_argument("--compute", type=float, help="teraflops per second, for the floor")
    parser.add_argument("--vs", choices=PEERS)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    own = [each.name for each in attrs.fields(EngineSettings) if each.name != "model"]
    for each in attrs.fields(EngineSettings)[1:]:
        action = argparse.BooleanOptionalAction if isinstance(each.default, bool) else "store"
        parser.add_argument(f"--{each.name.replace('_', '-')}", action=action, help=argparse.SUPPRESS)
    given = parser.parse_args()
    flags = {name: getattr(given, name) for name in (*own, "seeds", "warmup", "temperature")}
    names = ("num_prompts", "input_len", "output_len")
    changed = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    workloads = [attrs.evolve(each, **changed) for each in given.loads]
    for name in ("input_len", "output_len") if given.scale != 1 else ():
        workloads = [
            attrs.evolve(each, **{name: max(getattr(each, name) // given.scale, 1)}) for each in workloads
        ]
    try:
        check_peer(given.vs)
        check_writable(given.json)
        configurations = [read_configuration(flags | {"model": each}, os.environ) for each in given.models]
        reports = [run_model(each, workloads, given) for each in configurations]
    except (NanoserveError, OSError) as error:
        raise SystemExit(f"{parser.prog}: {error}") from None
    write_report(given.json, {"models": reports})


if __name__ == "__main__":
    main()
