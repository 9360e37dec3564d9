"""`nanoserve bench throughput` and `latency`, once their settings are read: measure, print, write the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from nanoserve.entrypoints.bench.measurement import (
    BenchRun,
    BenchWorkload,
    choose_workload,
    run_load,
    summarize,
)
from nanoserve.entrypoints.bench.report import check_writable, doing, head, number, show, table, write_report
from nanoserve.entrypoints.compose.assembly import BenchParts, Survey
from nanoserve.entrypoints.compose.bootstrap import assemble_bench, survey
from nanoserve.entrypoints.compose.choices import choose_sizes
from nanoserve.entrypoints.compose.config.command_settings import BenchSettings
from nanoserve.entrypoints.compose.config.configuration import Configuration
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.entrypoints.compose.printable import counted
from nanoserve.entrypoints.compose.process import Stopwatch
from nanoserve.ports.engine_facts import EngineFacts
from nanoserve.ports.errors import BadValueError
from nanoserve.ports.sampling import Door, SamplingParams, set_by

DEFAULT_LEN: Final = 128
"""Tokens of a prompt, and of an answer, whose latency is measured."""
LABELS: Final[Mapping[str, str]] = {
    "output_tok_s": "output tok/s",
    "total_tok_s": "total tok/s",
    "prompt_tok_s": "prompt tok/s",
    "decode_tok_s": "decode tok/s",
    "seconds": "seconds",
    "steps": "steps",
    "mean_step_ms": "ms per step, mean",
    "decode_step_ms": "ms per decode step",
    "host_step_us": "host us per decode step",
    "ttft_p50_ms": "TTFT ms, median",
    "ttft_max_ms": "TTFT ms, last",
}
BATCH_LABELS: Final[Mapping[str, str]] = {
    "ttft_p50_ms": "TTFT ms, median",
    "itl_p50_ms": "ITL ms, p50",
    "itl_p90_ms": "p90",
    "itl_p99_ms": "p99",
    "e2e_p50_ms": "E2E ms",
    "output_tok_s": "output tok/s",
}


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

    def describe(self, benchmark: str, facts: EngineFacts) -> dict[str, Any]:
        """The head of a file about an engine in this process."""
        return {
            **head(benchmark),
            "model": attrs.asdict(self.found),
            "engine": attrs.asdict(self.engine),
            "budget": {**facts.budget, "memory": dict(facts.memory)},
            "bench": attrs.asdict(self.bench),
            "sampling": {name: getattr(self.sampling, name) for name in set_by(Door.BENCH)},
        }


def choose_subject(
    configuration: Configuration, longest: int, *, rows: int = 0, watch: Stopwatch | None = None
) -> BenchSubject:
    """Refuse a load that cannot be measured, and make room for others.

    If the settings leave the context open, it becomes `longest`, the tokens of the longest sequence; if they leave the batch
    open, it grows to hold `rows` sequences. Raises `BadValueError` or `ModelLoadError`.
    """
    settings, given = configuration.engine, configuration.sampling
    found = survey(settings, watch)
    limits = (
        (settings.max_model_len, "max_model_len is"),
        (found.spec.max_position, "the model was made for"),
    )
    for limit, whose in limits:
        if limit is not None and longest > limit:
            said = f"the longest sequence has {longest} tokens, prompt and output, and {whose} {limit}"
            raise BadValueError("input_len", said)
    if settings.max_model_len is None:
        settings = attrs.evolve(settings, max_model_len=max(longest, 2))
    max_num_seqs = choose_sizes(settings, found.spec, found.device).max_num_seqs
    if rows > max_num_seqs:
        if settings.max_num_seqs is not None:
            raise BadValueError("batch_sizes", f"{rows} is more than max_num_seqs, {max_num_seqs}")
        settings = attrs.evolve(settings, max_num_seqs=rows)
    asked = {name: getattr(given, name) for name in set_by(Door.BENCH)}
    sampling = SamplingParams(**asked, ignore_eos=True, detokenize=False)
    return BenchSubject(found=found, engine=settings, bench=configuration.bench, sampling=sampling)


def measure(parts: BenchParts, subject: BenchSubject, workload: BenchWorkload) -> list[BenchRun]:
    """The runs of a workload that count, each with prompts of its own; those for warming up come before."""
    bench, vocab_size = subject.bench, parts.spec.vocab_size
    with doing(f"running {workload.description}"):
        runs = [
            run_load(parts.engine, workload.draw(vocab_size=vocab_size, seed=seed), subject.sampling)
            for seed in range(bench.warmup + bench.seeds)
        ]
    return runs[bench.warmup :]


def load_model(subject: BenchSubject) -> BenchParts:
    """The subject's engine."""
    with doing("loading the model"):
        return assemble_bench(subject.engine)


def run_throughput(configuration: Configuration, *, json_file: str | None) -> None:
    """One load at once: how many tokens per second come out. Raises whatever goes wrong."""
    workload = choose_workload(configuration.bench)
    check_writable(json_file)
    subject = choose_subject(configuration, workload.longest)
    parts = load_model(subject)
    runs = measure(parts, subject, workload)
    summary = summarize([run.figures() for run in runs])
    rows = [
        (label, *map(number, summary[name].values())) for name, label in LABELS.items() if name in summary
    ]
    title = f"{subject.title}; {workload.description}, {counted(subject.bench.seeds, 'seed')}"
    show(title, table(["", "median", "least", "most"], rows))
    if late := parts.engine.counts().runner.late_compiles:
        kernels = counted(late, "kernel")
        show(f"compiled late: {kernels}, not ready when a step needed them, warm-up included")
    numbers = {"workload": attrs.asdict(workload), "summary": summary, "late_compiles": late}
    report = subject.describe("throughput", parts.facts) | numbers
    write_report(json_file, report | {"runs": [run.record() for run in runs]})


def run_latency(configuration: Configuration, *, json_file: str | None) -> None:
    """Batches that begin together: how long each token takes. Raises whatever goes wrong."""
    bench = configuration.bench
    input_len, output_len = bench.input_len or DEFAULT_LEN, bench.output_len or DEFAULT_LEN
    sizes = dict.fromkeys(bench.batch_sizes)
    workloads = [
        BenchWorkload(name="batch", num_prompts=batch, input_len=input_len, output_len=output_len)
        for batch in sizes
    ]
    check_writable(json_file)
    subject = choose_subject(configuration, workloads[0].longest, rows=max(sizes))
    parts = load_model(subject)
    runs = {each.num_prompts: measure(parts, subject, each) for each in workloads}
    summary = {batch: summarize([run.figures() for run in some]) for batch, some in runs.items()}
    names = [name for name in BATCH_LABELS if any(name in figures for figures in summary.values())]
    rows: list[Sequence[str]] = [
        [str(batch), *(number(figures[name]["median"]) if name in figures else "" for name in names)]
        for batch, figures in summary.items()
    ]
    title = f"{subject.title}; {input_len} -> {output_len}, {counted(bench.seeds, 'seed')}"
    show(title, table(["batch", *(BATCH_LABELS[name] for name in names)], rows))
    records = {batch: [run.record() for run in some] for batch, some in runs.items()}
    write_report(json_file, subject.describe("latency", parts.facts) | {"summary": summary, "runs": records})
