"""What drafts from n-grams gain where the answer copies its prompt, and cost where they do not help, beside an engine without drafts.

    python -m benchmarks.ngram_drafts MODEL [--copied 0.9 0.95] [--rows 1 8 64 256] [--input-len 128] [--output-len 256] [--rounds 5]
                                      [OPTIONS OF THE ENGINE, as of nanoserve serve]

Without `--copied` the text is random, and the engine with `--speculate auto` also serves requests that want no drafts. A second engine without drafts
shows how far two equal ones lie apart.

With `--copied`, for each share, a prompt holds the answer that follows, but for one token in 1 / (1 - share), each of which an edit changed. The model's
embedding and head are turned so that it writes exactly that answer (of a published shape with an output head of its own, such as Llama 3.1 8B), and
`--speculate ngram` is measured, too.

All engines are in one process, so `--kv-memory` must leave room for the others. They take turns, in an order that changes from round to round. Each
ratio is the median of the rounds' own, with the least and the most, after a round that does not count.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
from collections.abc import Callable
from itertools import product
from typing import Any
from unittest import mock

import attrs

from benchmarks.draft_heads import make_counting_model
from nanoserve.adapters.pytorch.models import build_random_model
from nanoserve.entrypoints.bench.command import choose_subject, load_model
from nanoserve.entrypoints.bench.measurement import BenchLoad, BenchWorkload, run_load
from nanoserve.entrypoints.compose.assembly import BenchParts
from nanoserve.entrypoints.compose.config.configuration import read_configuration
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.ports.sampling import SamplingParams

Draw = Callable[[BenchWorkload, int, int], BenchLoad]


def main() -> None:
    """Measure each number of rows in turn."""
    given = _arguments()
    engines: dict[str, BenchParts] = {}
    second = ("off, again", "off") if given.copied is None else ("ngram", "ngram")
    for name, speculate in (("off", "off"), second, ("auto", "auto")):
        fields = (each.name for each in attrs.fields(EngineSettings)[1:])
        flags = {field: getattr(given, field) for field in ("model", "temperature", *fields)}
        configuration = read_configuration(flags | {"speculate": speculate}, os.environ)
        subject = choose_subject(configuration, given.input_len + given.output_len, rows=max(given.rows))
        maker = build_random_model if given.copied is None else make_counting_model
        with mock.patch("nanoserve.entrypoints.compose.building.build_random_model", maker):
            engines[name] = load_model(subject)
    print(subject.title, flush=True)
    kinds = {name: (parts, subject.sampling) for name, parts in engines.items()}
    draws: dict[str, Draw] = {f"{share:.0%} copied": Copied(share) for share in given.copied or ()}
    if not draws:
        draws = {"random": draw_random}
        kinds["auto, none wanted"] = (engines["auto"], attrs.evolve(subject.sampling, drafts=False))
    for (text, draw), rows in product(draws.items(), given.rows):
        workload = BenchWorkload(
            name=text, num_prompts=rows, input_len=given.input_len, output_len=given.output_len
        )
        compare(kinds, workload, given.rounds, draw)


def draw_random(workload: BenchWorkload, vocab_size: int, seed: int) -> BenchLoad:
    """Random prompts."""
    return workload.draw(vocab_size=vocab_size, seed=seed)


@attrs.frozen
class Copied:
    """Draws prompts that hold what a model that counts writes behind them, but for edits."""

    share: float

    def __call__(self, workload: BenchWorkload, vocab_size: int, seed: int) -> BenchLoad:
        """Each prompt is as much of the answer as fits, edited, and the id before the answer's first."""
        draw = random.Random(seed)
        prompts = []
        for _ in range(workload.num_prompts):
            first = draw.randrange(vocab_size)
            text = [(first + place) % vocab_size for place in range(1, workload.input_len)]
            edited = [each if draw.random() < self.share else draw.randrange(vocab_size) for each in text]
            prompts.append((*edited, first))
        lengths = [workload.output_len] * workload.num_prompts
        return BenchLoad(seed=seed, prompts=prompts, output_lengths=lengths)


def compare(
    kinds: dict[str, tuple[BenchParts, SamplingParams]], workload: BenchWorkload, rounds: int, draw: Draw
) -> None:
    """Run a workload so many times on each, and print how fast it was."""
    speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
    drafts: dict[str, tuple[int, int]] = {}
    names = list(kinds)
    for number in range(rounds + 1):
        for kind in names[number % len(names) :] + names[: number % len(names)]:
            parts, sampling = kinds[kind]
            before = parts.engine.state()
            run = run_load(parts.engine, draw(workload, parts.spec.vocab_size, number), sampling)
            after = parts.engine.state()
            speeds[kind].append(run.figures()["output_tok_s"])
            drafts[kind] = _gained(before, after, "draft_tokens"), _gained(before, after, "accepted_tokens")
    for kind, found in speeds.items():
        ratios = [mine / free for mine, free in zip(found[1:], speeds["off"][1:], strict=True)]
        made, right = drafts[kind]
        counted = f", {made} drafts in the last round, {right} right" if made else ""
        print(
            f"{workload.name}, {workload.num_prompts:4d} rows, {kind:17s}: {statistics.median(found[1:]):7.0f} tok/s, "
            f"{statistics.median(ratios):.3f} of off ({min(ratios):.3f}-{max(ratios):.3f}){counted}",
            flush=True,
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ngram_drafts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model")
    parser.add_argument("--copied", type=float, nargs="+")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", default="0.6")
    for each in attrs.fields(EngineSettings)[1:]:
        action = argparse.BooleanOptionalAction if isinstance(each.default, bool) else "store"
        parser.add_argument(f"--{each.name.replace('_', '-')}", action=action, help=argparse.SUPPRESS)
    return parser.parse_args()


def _gained(before: Any, after: Any, name: str) -> int:
    return int(getattr(after, name) - getattr(before, name))


if __name__ == "__main__":
    main()
