"""Whether the last rows of a crowd are as fast as a batch of their own: milliseconds per step of both, by turns in one engine.

    python -m benchmarks.tails shape:llama-3.2-1b [--crowds 256 512] [--last 8] [--input-len 128] [--early 64] [--late 256] [--rounds 3]

All but the last rows of a crowd end after `--early` tokens. What is compared are the final steps of both, at the same context, half as many as `--late`.
"""

from __future__ import annotations

import argparse
import os
import statistics

import attrs

from nanoserve.entrypoints.bench.command import choose_subject, load_model
from nanoserve.entrypoints.bench.measurement import BenchRun, BenchWorkload, run_load
from nanoserve.entrypoints.bench.report import number, show, table
from nanoserve.entrypoints.compose.config.configuration import read_configuration


def final_steps(run: BenchRun, rows: int, steps: int) -> float:
    """The median, in milliseconds, of the final steps of a run, all of which have as many rows; the very last two are left out."""
    turns = list(zip(run.turns(0), run.turns(1), strict=True))[-steps - 2 : -2]
    taken = [seconds for seconds, tokens in turns if tokens == rows]
    if len(taken) < steps // 2:
        raise SystemExit(f"only {len(taken)} of the last {steps} steps had {rows} rows: more --late")
    return 1e3 * statistics.median(taken)


def main() -> None:
    """Run crowds and batches by turns and print both."""
    given = _arguments()
    flags = {name: getattr(given, name) for name in ("model", "device", "dtype", "quantization")}
    longest = given.input_len + given.late
    subject = choose_subject(read_configuration(flags, os.environ), longest, rows=max(given.crowds))
    parts = load_model(subject)
    rows = []
    for crowd in given.crowds:
        found: dict[int, list[float]] = {crowd: [], given.last: []}
        for seed in range(given.rounds):
            for size, times in found.items():
                workload = BenchWorkload(
                    name="tail", num_prompts=size, input_len=given.input_len, output_len=given.late
                )
                load = workload.draw(vocab_size=parts.spec.vocab_size, seed=seed)
                lengths = [given.early] * (size - given.last) + [given.late] * given.last
                run = run_load(parts.engine, attrs.evolve(load, output_lengths=lengths), subject.sampling)
                times.append(final_steps(run, given.last, given.late // 2))
        tail, alone = (statistics.median(times) for times in found.values())
        ratios = [after / before for before, after in zip(*found.values(), strict=True)]
        rows.append((str(crowd), number(tail), number(alone), *(f"{each:.3f}" for each in (alone / tail, min(ratios), max(ratios)))))  # fmt: skip
    titles = ["crowd", f"last {given.last} rows, ms per step", "alone", "speed of the last", "least", "most"]
    show(f"{subject.title}, {given.input_len} -> {given.late} tokens", table(titles, rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--crowds", type=int, nargs="+", default=[256])
    parser.add_argument("--last", type=int, default=8)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--early", type=int, default=64)
    parser.add_argument("--late", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--quantization")
    return parser.parse_args()


if __name__ == "__main__":
    main()
