"""Runs a load through the engine in a tight loop and says how fast it went.

While the engine runs, each turn costs four numbers and nothing else; everything is computed from them afterwards.
"""

from __future__ import annotations

import bisect
import gc
import itertools
import math
import statistics
import time
from collections.abc import Iterable, Sequence

import attrs

from nanoserve.entrypoints.bench.workloads import BenchLoad
from nanoserve.entrypoints.compose.assembly import BenchParts
from nanoserve.entrypoints.compose.interrupts import deferring_interrupts
from nanoserve.ports.driving import EngineHandle
from nanoserve.ports.errors import StepFailedError
from nanoserve.ports.events import EngineEvent, TokensGenerated
from nanoserve.ports.request import FinishReason
from nanoserve.ports.sampling import SamplingParams

Mark = tuple[float, int, int, float]
"""After a turn: the clock, then tokens generated, prompt tokens computed and seconds waited since the engine began."""


@attrs.frozen
class RunSpread:
    """The median of several runs, the least and the most."""

    median: float
    least: float
    most: float


def spread_of(values: Iterable[float]) -> RunSpread:
    """Of at least one value."""
    listed = list(values)
    return RunSpread(statistics.median(listed), min(listed), max(listed))


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value that at least this fraction of the values does not exceed; NaN of none."""
    if not values:
        return float("nan")
    ranked = sorted(values)
    return ranked[max(math.ceil(fraction * len(ranked)), 1) - 1]


@attrs.frozen(kw_only=True)
class BenchRun:
    """What was observed of one load.

    Attributes:
        began: the clock when the first request was handed over.
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

    @property
    def times_to_first_token(self) -> list[float]:
        """Seconds from the beginning of the run, sorted."""
        return sorted(each - self.began for each in _first_tokens(self.ends))

    def figures(self) -> dict[str, float]:
        """The numbers of this run by name; the name ends in the unit. Numbers that it cannot give are left out."""
        prompt, generated = self.load.num_prompt_tokens, self.load.num_output_tokens
        first = self.times_to_first_token
        steady = self._steady_turns()
        figures = {
            "output_tok_s": generated / self.seconds,
            "total_tok_s": (prompt + generated) / self.seconds,
            "prompt_tok_s": prompt / first[-1],
            "seconds": self.seconds,
            "steps": float(len(self.marks) - 1),
            "mean_step_ms": 1e3 * self.seconds / (len(self.marks) - 1),
            "ttft_p50_ms": 1e3 * percentile(first, 0.5),
            "ttft_max_ms": 1e3 * first[-1],
        }
        if steady:
            figures["decode_step_ms"] = 1e3 * statistics.median(seconds for seconds, _ in steady)
        if steady and self.counts_waits:
            figures["host_step_us"] = 1e6 * statistics.median(seconds - waited for seconds, waited in steady)
        return figures | self._decode_rate()

    def latency_figures(self) -> dict[str, float]:
        """As `figures`, for the latencies of a batch whose requests begin together."""
        gaps = self._gaps()
        ended = sorted(
            each.times.finished - self.began for each in self.ends if each.times and each.times.finished
        )
        first = self.times_to_first_token
        return {
            "ttft_p50_ms": 1e3 * percentile(first, 0.5),
            "ttft_max_ms": 1e3 * first[-1],
            **{f"itl_p{part}_ms": 1e3 * percentile(gaps, part / 100) for part in (50, 90, 99) if gaps},
            "e2e_p50_ms": 1e3 * percentile(ended, 0.5),
            "e2e_max_ms": 1e3 * ended[-1],
            "output_tok_s": self.load.num_output_tokens / self.seconds,
        }

    def _steady_turns(self) -> list[tuple[float, float]]:
        """Seconds, and seconds of them waited, of the turns that brought home decodes alone, like the turn before."""
        turns = [
            (now[0] - then[0], now[3] - then[3], now[2] == then[2] and now[1] > then[1])
            for then, now in itertools.pairwise(self.marks)
        ]
        return [
            (seconds, waited)
            for (_, _, before), (seconds, waited, decodes) in itertools.pairwise(turns)
            if before and decodes
        ]

    def _decode_rate(self) -> dict[str, float]:
        """Tokens per second from the moment on when every prompt has been read."""
        start = bisect.bisect_left(
            self.marks, self.began + self.times_to_first_token[-1], key=lambda mark: mark[0]
        )
        (then, before, _, _), (now, after, _, _) = self.marks[start], self.marks[-1]
        return {"decode_tok_s": (after - before) / (now - then)} if after > before else {}

    def _gaps(self) -> list[float]:
        """Seconds between each token and the one before it in its sequence, for every token but the first ones."""
        first = sorted(_first_tokens(self.ends))
        gaps: list[float] = []
        for then, now in itertools.pairwise(self.marks):
            fresh = bisect.bisect_right(first, now[0]) - bisect.bisect_right(first, then[0])
            gaps += [now[0] - then[0]] * (now[1] - then[1] - fresh)
        return gaps


def run_loads(parts: BenchParts, loads: Iterable[BenchLoad], sampling: SamplingParams) -> list[BenchRun]:
    """Run loads one after the other.

    Python's garbage collector is made to forget what has piled up before each, so that it does not walk through a
    whole process in the middle of a run. Raises as `run_load` does.
    """
    runs: list[BenchRun] = []
    try:
        for load in loads:
            gc.collect()
            gc.freeze()
            runs.append(run_load(parts, load, sampling))
    finally:
        gc.unfreeze()
    return runs


def run_load(parts: BenchParts, load: BenchLoad, sampling: SamplingParams) -> BenchRun:
    """Run a load to its end.

    Raises `KeyboardInterrupt` between two turns after Ctrl-C, and `StepFailedError` where the engine could not finish.
    """
    engine = parts.engine
    requests = load.requests(sampling)
    ends: list[TokensGenerated] = []
    with deferring_interrupts() as interruption:
        began = time.monotonic()
        for request in requests:
            engine.add(request)
        marks = [_mark(engine)]
        while engine.has_work and not interruption.pending:
            _take_ends(engine.turn(), ends)
            marks.append(_mark(engine))
    if interruption.pending:
        raise KeyboardInterrupt
    _check_ends(load, ends)
    counts_waits = engine.counts().runner.device_wait_seconds is not None
    return BenchRun(load=load, began=began, marks=marks, ends=ends, counts_waits=counts_waits)


def _mark(engine: EngineHandle) -> Mark:
    now, counts = time.monotonic(), engine.counts()
    return (now, counts.generated_tokens, counts.prompt_tokens, counts.runner.device_wait_seconds or 0.0)


def run_until_decoding(engine: EngineHandle, load: BenchLoad, sampling: SamplingParams) -> None:
    """Begin a load and go on until every prompt has been read, or all is done."""
    for request in load.requests(sampling):
        engine.add(request)
    while any(not each.num_generated_tokens for each in engine.living()):
        engine.turn()


def abandon(engine: EngineHandle, load: BenchLoad, sampling: SamplingParams) -> None:
    """End a load that was begun."""
    for request in load.requests(sampling):
        engine.abort(request.request_id)
    while engine.has_work:
        engine.turn()


def _take_ends(events: Sequence[EngineEvent], ends: list[TokensGenerated]) -> None:
    """Keep the last events of sequences; the engine reports them last."""
    for event in reversed(events):
        if not isinstance(event, TokensGenerated) or event.finish_reason is None:
            return
        ends.append(event)


def _check_ends(load: BenchLoad, ends: Sequence[TokensGenerated]) -> None:
    failed = [each for each in ends if each.finish_reason is not FinishReason.LENGTH]
    if failed:
        raise StepFailedError(f"{len(failed)} of {len(ends)} sequences failed: {failed[0].error}")
    generated = sum(each.num_generated for each in ends)
    if generated != load.num_output_tokens:
        raise StepFailedError(f"{generated} tokens were generated instead of {load.num_output_tokens}")


def _first_tokens(ends: Sequence[TokensGenerated]) -> list[float]:
    """Clock readings of every sequence's first token."""
    return [each.times.first_token for each in ends if each.times and each.times.first_token is not None]
