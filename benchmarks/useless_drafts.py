"""What drafts cost where they do not help: random text on an engine without them, on one with `--speculate auto`, and there with requests that want none.

    python -m benchmarks.useless_drafts MODEL [--rows 1 8 64 256] [--input-len 128] [--output-len 256] [--rounds 5]
                                        [OPTIONS OF THE ENGINE, as of nanoserve serve]

Both engines are in one process, so `--kv-memory` must leave room for the second. The three take turns, in an order that changes from round to round. Each
ratio is the median of the rounds' own, with the least and the most, after a round that does not count.
"""

from __future__ import annotations

import argparse
import os
import statistics
from typing import Any

import attrs

from nanoserve.entrypoints.bench.command import choose_subject, load_model
from nanoserve.entrypoints.bench.measurement import BenchWorkload, run_load
from nanoserve.entrypoints.compose.assembly import BenchParts
from nanoserve.entrypoints.compose.config.configuration import read_configuration
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.ports.sampling import SamplingParams


def main() -> None:
    """Measure each number of rows in turn."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.useless_drafts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", default="0.6")
    names = [each.name for each in attrs.fields(EngineSettings)[1:]]
    for each in attrs.fields(EngineSettings)[1:]:
        action = argparse.BooleanOptionalAction if isinstance(each.default, bool) else "store"
        parser.add_argument(f"--{each.name.replace('_', '-')}", action=action, help=argparse.SUPPRESS)
    given = parser.parse_args()
    engines: dict[str, BenchParts] = {}
    for speculate in ("off", "auto"):
        flags = {name: getattr(given, name) for name in ("model", "temperature", *names)}
        configuration = read_configuration(flags | {"speculate": speculate}, os.environ)
        subject = choose_subject(configuration, given.input_len + given.output_len, rows=max(given.rows))
        engines[speculate] = load_model(subject)
    print(subject.title, flush=True)
    plain = subject.sampling
    kinds: dict[str, tuple[BenchParts, SamplingParams]] = {
        "off": (engines["off"], plain),
        "auto": (engines["auto"], plain),
        "auto, none wanted": (engines["auto"], attrs.evolve(plain, drafts=False)),
    }
    for rows in given.rows:
        workload = BenchWorkload(
            name="rows", num_prompts=rows, input_len=given.input_len, output_len=given.output_len
        )
        compare(kinds, workload, given.rounds)


def compare(
    kinds: dict[str, tuple[BenchParts, SamplingParams]], workload: BenchWorkload, rounds: int
) -> None:
    """Run a workload so many times on each, and print how fast it was."""
    speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
    drafts: dict[str, tuple[int, int]] = {}
    names = list(kinds)
    for number in range(rounds + 1):
        for kind in names[number % len(names) :] + names[: number % len(names)]:
            parts, sampling = kinds[kind]
            before = parts.engine.state()
            run = run_load(
                parts.engine, workload.draw(vocab_size=parts.spec.vocab_size, seed=number), sampling
            )
            after = parts.engine.state()
            speeds[kind].append(run.figures()["output_tok_s"])
            drafts[kind] = _gained(before, after, "draft_tokens"), _gained(before, after, "accepted_tokens")
    for kind, found in speeds.items():
        ratios = [mine / free for mine, free in zip(found[1:], speeds["off"][1:], strict=True)]
        made, right = drafts[kind]
        counted = f", {made} drafts in the last round, {right} right" if made else ""
        print(
            f"{workload.num_prompts:4d} rows, {kind:17s}: {statistics.median(found[1:]):7.0f} tok/s, "
            f"{statistics.median(ratios):.3f} of off ({min(ratios):.3f}-{max(ratios):.3f}){counted}",
            flush=True,
        )


def _gained(before: Any, after: Any, name: str) -> int:
    return int(getattr(after, name) - getattr(before, name))


if __name__ == "__main__":
    main()
