"""What deterministic requests cost: the same load where nobody asks, where some do, and where all do.

    python -m benchmarks.deterministic_requests MODEL [--rows 64 256] [--input-len 128] [--output-len 256] [--rounds 1]
                                                [OPTIONS OF THE ENGINE, as of nanoserve serve]

All sequences of a load run at once, after a short one that does not count. With `--deterministic` the engine is deterministic throughout,
and only the free load is run. `agreed` are those of the tokens decoded by fast steps that counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
from typing import Any, Final

import attrs

from nanoserve.entrypoints.bench.command import choose_subject, load_model
from nanoserve.entrypoints.bench.measurement import BenchLoad, BenchWorkload, run_load
from nanoserve.entrypoints.compose.assembly import BenchParts
from nanoserve.entrypoints.compose.config.configuration import read_configuration
from nanoserve.entrypoints.compose.config.engine_settings import EngineSettings
from nanoserve.ports.request import Request
from nanoserve.ports.sampling import SamplingParams

KINDS: Final = {"free": 0, "one in four": 4, "all": 1}
WARM_UP: Final = 80
"""Tokens of each answer of the load that does not count, in which kernels are compiled and graphs captured."""


@attrs.frozen(kw_only=True)
class AskingLoad(BenchLoad):
    """A load of whose requests one in `every` is deterministic; none with 0."""

    every: int

    def requests(self, sampling: SamplingParams) -> list[Request]:
        """See `BenchLoad`."""
        return [
            attrs.evolve(
                each,
                request_id=f"{each.request_id} {self.every}",
                sampling=attrs.evolve(
                    each.sampling, deterministic=self.every > 0 and not number % self.every
                ),
            )
            for number, each in enumerate(super().requests(sampling))
        ]


def main() -> None:
    """Measure each number of rows in turn."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.deterministic_requests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--temperature", default="0.6")
    for each in attrs.fields(EngineSettings)[1:]:
        action = argparse.BooleanOptionalAction if isinstance(each.default, bool) else "store"
        parser.add_argument(f"--{each.name.replace('_', '-')}", action=action, help=argparse.SUPPRESS)
    given = parser.parse_args()
    flags = {
        name: getattr(given, name) for name in ("temperature", *map(_name, attrs.fields(EngineSettings)))
    }
    configuration = read_configuration(flags, os.environ)
    subject = choose_subject(configuration, given.input_len + given.output_len, rows=max(given.rows))
    engine = load_model(subject)
    kinds = {"free": 0} if given.deterministic else KINDS
    print(f"{subject.title}{', deterministic throughout' * bool(given.deterministic)}", flush=True)
    for rows in given.rows:
        free = 0.0
        for kind, every in kinds.items():
            speeds = list[float]()
            before = engine.engine.state()
            for number in range(-1, given.rounds):
                length = given.output_len if number >= 0 else min(given.output_len, WARM_UP)
                speed = measure(engine, subject.sampling, (rows, given.input_len, length), every, number + 1)
                speeds += [speed] * (number >= 0)
            after, median = engine.engine.state(), statistics.median(speeds)
            free = free or median
            drafts, right = (
                getattr(after, name) - getattr(before, name) for name in ("draft_tokens", "accepted_tokens")
            )
            agreed = f", agreed {right / drafts:.1%}" if drafts else ""
            print(f"{rows} rows, {kind}: {median:.0f} tok/s, {median / free:.2f} of free{agreed}", flush=True)


def measure(
    parts: BenchParts, sampling: SamplingParams, sizes: tuple[int, int, int], every: int, seed: int
) -> float:
    """Tokens per second of one load: so many rows, tokens of a prompt and of an answer."""
    rows, input_len, output_len = sizes
    workload = BenchWorkload(name="rows", num_prompts=rows, input_len=input_len, output_len=output_len)
    drawn = workload.draw(vocab_size=parts.spec.vocab_size, seed=seed)
    load = AskingLoad(seed=seed, prompts=drawn.prompts, output_lengths=drawn.output_lengths, every=every)
    return run_load(parts.engine, load, sampling).figures()["output_tok_s"]


def _name(field: Any) -> str:
    return str(field.name)


if __name__ == "__main__":
    main()
