"""Runs a load through the engine in a tight loop and says how fast it went.

While the engine runs, each turn costs four numbers and nothing else; everything is computed from them afterwards.
"""

from __future__ import annotations

import bisect
import gc
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import attrs

from nanoserve.entrypoints.bench.report import percentile
from nanoserve.entrypoints.compose.config.command_settings import BenchSettings
from nanoserve.entrypoints.compose.interrupts import deferring_interrupts
from nanoserve.entrypoints.compose.process import without_full_collections
from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.events import TokensGenerated
from nanoserve.ports.request import FinishReason, Request
from nanoserve.ports.sampling import SamplingParams

LEAST_NANO_LEN: Final = 100
"""The shortest prompt and answer of the nano workload."""


@attrs.frozen(kw_only=True)
class BenchLoad:
    """One run's prompts and the number of tokens of each answer; `seed` made them."""

    seed: int
    prompts: Sequence[tuple[int, ...]]
    output_lengths: Sequence[int]

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(map(len, self.prompts))

    @property
    def num_output_tokens(self) -> int:
        """To be generated for all prompts together."""
        return sum(self.output_lengths)

    def requests(self, sampling: SamplingParams) -> list[Request]:
        """One request per prompt with a seed of its own; each generates exactly its number of tokens."""
        return [
            Request(
                request_id=f"{self.seed}-{index}",
                prompt_token_ids=prompt,
                sampling=attrs.evolve(sampling, max_tokens=length),
                seed=self.seed * 1_000_003 + index,
                stream=False,
            )
            for index, (prompt, length) in enumerate(zip(self.prompts, self.output_lengths, strict=True))
        ]


@attrs.frozen(kw_only=True)
class BenchWorkload:
    """A kind of load. Lengths are tokens; where `uniform`, they are the upper bounds of lengths drawn uniformly."""

    name: str
    num_prompts: int
    input_len: int
    output_len: int
    uniform: bool = False

    @property
    def longest(self) -> int:
        """The most tokens that one of its sequences can have."""
        return self.input_len + self.output_len

    @property
    def description(self) -> str:
        """In a few words."""
        lengths = (
            f"U({min(LEAST_NANO_LEN, most)}, {most})" if self.uniform else str(most)
            for most in (self.input_len, self.output_len)
        )
        return f"{self.name}: {self.num_prompts} x {' -> '.join(lengths)}"

    def draw(self, *, vocab_size: int, seed: int) -> BenchLoad:
        """The prompts of one run; the same seed gives the same ones, and other ones for every workload."""
        draw = random.Random(f"{self.description} {seed}")  # noqa: S311 - a benchmark wants repeatable numbers
        ins, outs = ([most] * self.num_prompts for most in (self.input_len, self.output_len))
        if self.uniform:
            ins, outs = (
                [draw.randint(min(LEAST_NANO_LEN, most), most) for most in each] for each in (ins, outs)
            )
        prompts = [tuple(draw.choices(range(vocab_size), k=length)) for length in ins]
        return BenchLoad(seed=seed, prompts=prompts, output_lengths=outs)


WORKLOADS: Final[Mapping[str, BenchWorkload]] = {
    each.name: each
    for each in (
        BenchWorkload(name="fixed", num_prompts=64, input_len=512, output_len=256),
        BenchWorkload(name="nano", num_prompts=256, input_len=1024, output_len=1024, uniform=True),
        BenchWorkload(name="prefill", num_prompts=64, input_len=2048, output_len=1),
        BenchWorkload(name="long", num_prompts=1, input_len=32_768, output_len=256),
    )
}
"""`nano` is the protocol of nano-vLLM's bench.py."""


def choose_workload(settings: BenchSettings) -> BenchWorkload:
    """The workload that the settings name, with the numbers that they give."""
    names = ("num_prompts", "input_len", "output_len")
    given = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    return attrs.evolve(WORKLOADS[settings.workload], **given)


Mark = tuple[float, int, int, float]
"""After a turn: the clock, then tokens generated, prompt tokens computed and seconds waited since the engine began."""


def summarize(runs: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The median, the least and the most of every figure that all runs have."""
    common = [name for name in runs[0] if all(name in each for each in runs)]
    every = {name: [each[name] for each in runs] for name in common}
    return {
        name: {"median": statistics.median(values), "least": min(values), "most": max(values)}
        for name, values in every.items()
    }


@attrs.frozen(kw_only=True)
class BenchRun:
    """Observations of one load.

    Attributes:
        marks: one before the first turn, one after each.
        ends: the last event of each sequence, as they ended.
        counts_waits: whether the waits in the marks mean anything.
    """

    load: BenchLoad
    began: float
    marks: Sequence[Mark]
    ends: Sequence[TokensGenerated]
    counts_waits: bool

    @property
    def seconds(self) -> float:
        """From the first request to the last token."""
        return self.marks[-1][0] - self.began

    def times(self, moment: str) -> list[float]:
        """Seconds from the beginning to a moment of every sequence, `first_token` or `finished`, sorted."""
        found = [getattr(each.times, moment) for each in self.ends if each.times]
        return sorted(each - self.began for each in found if each is not None)

    def turns(self, column: int) -> list[float]:
        """The growth of a column of the marks in each turn."""
        return [now[column] - then[column] for then, now in pairwise(self.marks)]

    def figures(self) -> dict[str, float]:
        """The numbers of this run by name; the name ends in the unit. Numbers that it cannot give are left out."""
        prompt, generated = self.load.num_prompt_tokens, self.load.num_output_tokens
        turns, first, ended = len(self.marks) - 1, self.times("first_token"), self.times("finished")
        figures = {
            "output_tok_s": generated / self.seconds,
            "total_tok_s": (prompt + generated) / self.seconds,
            "prompt_tok_s": prompt / first[-1],
            "seconds": self.seconds,
            "steps": float(turns),
            "mean_step_ms": 1e3 * self.seconds / turns,
            "ttft_p50_ms": 1e3 * percentile(first, 0.5),
            "ttft_max_ms": 1e3 * first[-1],
            "e2e_p50_ms": 1e3 * percentile(ended, 0.5),
            "e2e_max_ms": 1e3 * ended[-1],
        }
        if gaps := self._gaps():
            figures |= {f"itl_p{part}_ms": 1e3 * percentile(gaps, part / 100) for part in (50, 90, 99)}
        if steady := self._steady_turns():
            figures["decode_step_ms"] = 1e3 * statistics.median(seconds for seconds, _ in steady)
            if self.counts_waits:
                figures["host_step_us"] = 1e6 * statistics.median(
                    seconds - waited for seconds, waited in steady
                )
        all_read = bisect.bisect_left(self.marks, self.began + first[-1], key=lambda mark: mark[0])
        (then, before, *_), (now, after, *_) = self.marks[all_read], self.marks[-1]
        return figures | ({"decode_tok_s": (after - before) / (now - then)} if after > before else {})

    def record(self) -> dict[str, Any]:
        """For the JSON file."""
        return {
            "seed": self.load.seed,
            "prompt_tokens": self.load.num_prompt_tokens,
            "output_tokens": self.load.num_output_tokens,
            "cached_tokens": sum(each.num_cached_tokens for each in self.ends),
            "figures": self.figures(),
            "ttft_seconds": self.times("first_token"),
            "turn_seconds": self.turns(0),
            "turn_tokens": self.turns(1),
            "turn_prompt_tokens": self.turns(2),
            "turn_waited_seconds": self.turns(3),
        }

    def _steady_turns(self) -> list[tuple[float, float]]:
        """Seconds, and seconds of them waited, of the turns that collected decodes alone, like the turn before."""
        turns = list(zip(*map(self.turns, range(4)), strict=True))
        decodes = [tokens > 0 and not read for _, tokens, read, _ in turns]
        both = [now and before for before, now in pairwise(decodes)]
        return [(turn[0], turn[3]) for turn, counts in zip(turns[1:], both, strict=True) if counts]

    def _gaps(self) -> list[float]:
        """Seconds between each token and the one before it in its sequence, for every token but the first ones."""
        first = [self.began + each for each in self.times("first_token")]
        gaps: list[float] = []
        for then, now in pairwise(self.marks):
            fresh = bisect.bisect_right(first, now[0]) - bisect.bisect_right(first, then[0])
            gaps += [now[0] - then[0]] * (now[1] - then[1] - fresh)
        return gaps


def run_load(engine: EngineHandle, load: BenchLoad, sampling: SamplingParams) -> BenchRun:
    """Run a load to its end.

    Raises `KeyboardInterrupt` between two turns after Ctrl-C, and `StepFailedError` where the engine could not finish.
    """
    requests = load.requests(sampling)
    ends: list[TokensGenerated] = []
    gc.collect()
    with without_full_collections(), deferring_interrupts() as interruption:
        began = time.monotonic()
        for request in requests:
            engine.add(request)
        marks = [_mark(engine)]
        while engine.has_work and not interruption.pending:
            for event in reversed(engine.turn()):  # the engine reports the last events of sequences last
                if not isinstance(event, TokensGenerated) or event.finish_reason is None:
                    break
                ends.append(event)
            marks.append(_mark(engine))
    if interruption.pending:
        raise KeyboardInterrupt
    failed = [each for each in ends if each.finish_reason is not FinishReason.LENGTH]
    if failed:
        raise StepFailedError(f"{len(failed)} of {len(ends)} sequences failed: {failed[0].error}")
    generated = sum(each.num_generated for each in ends)
    if generated != load.num_output_tokens:
        raise StepFailedError(f"{generated} tokens were generated instead of {load.num_output_tokens}")
    return BenchRun(load=load, began=began, marks=marks, ends=ends, counts_waits=marks[-1][3] > 0)


def _mark(engine: EngineHandle) -> Mark:
    now, counts = time.monotonic(), engine.counts()
    return (now, counts.generated_tokens, counts.prompt_tokens, counts.runner.device_wait_seconds)
