"""Results of one load: throughput, latencies, failures, goodput, doubts; and the knee of several."""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
from rich import box
from rich.table import Table

from nanoserve.entrypoints.bench.report import number, percentile, show, table
from nanoserve.entrypoints.bench.serving.client import OK, LoadRun, OfferedLoad, Outcome

LATE_MS: Final = 20.0
"""A schedule was kept where 99 of 100 requests were begun this close to their moments."""
BUSY: Final = 0.85
"""The fraction of a core above which the client may limit the measurement, and not the server."""
KEPT_UP: Final = 0.5
"""The fraction of the offered rate below which a server has not kept up."""
GOOD_ENOUGH: Final = 0.9
"""The fraction of requests that must keep the objectives."""
SLOWDOWN: Final = 1.5
DRIFT: Final = 0.05
"""The most by which the last third of the requests may take longer than the first, as a ratio and as a fraction of the run."""


@attrs.frozen(kw_only=True)
class LoadLevel:
    """One load and the result of it.

    Attributes:
        results: requests by `Outcome.result`, and `messages` what was said of the first failure of each kind.
        request_s, output_tok_s: complete answers, and their tokens, per second of the whole run.
        prompt_tokens, output_tokens: of a complete answer, on average.
        latencies: milliseconds, as `distribution` gives them: `ttft`, `tpot` and `e2e` with one value per answer; `itl`
            over all gaps between pieces of all answers; `refusal` of requests that got another status than 200, until
            their answer was complete; `lateness`, how long after their moments requests were begun, which is the client's fault.
        goodput: requests per second that kept every objective, and `good` their fraction of all that were sent.
        queue_grew: answers took longer and longer: the server cannot sustain this load.
    """

    load: OfferedLoad
    run: LoadRun
    results: Mapping[str, int]
    messages: Mapping[str, str]
    request_s: float
    output_tok_s: float
    prompt_tokens: float
    output_tokens: float
    latencies: Mapping[str, Mapping[str, float]]
    goodput: float | None
    good: float | None
    queue_grew: bool

    @property
    def completed(self) -> int:
        """Complete answers."""
        return self.results.get(OK, 0)

    @property
    def kept_up(self) -> bool:
        """True if answers came about as fast as requests, so that its figures are a server's and not a queue's."""
        is_behind = self.load.rate is not None and self.request_s < KEPT_UP * self.load.rate
        return bool(self.completed) and not is_behind and not self.queue_grew

    @property
    def doubts(self) -> list[str]:
        """Why the figures may be the client's and not the server's."""
        late, run = self.latencies["lateness"]["p99"], self.run
        said = f"the schedule was not kept: requests were sent {late:.0f} ms late (p99)"
        busy = f"the client used {run.busy:.0%} of a core, of which it has one: it may be the bottleneck"
        return [said] * (late > LATE_MS) + [f"{busy}, at {run.pieces_s:,.0f} pieces per second"] * (
            run.busy > BUSY
        )

    def record(self) -> dict[str, Any]:
        """For the JSON file."""
        nested = attrs.filters.exclude("load", "run", "latencies")
        return {
            **attrs.asdict(self.load),
            **attrs.asdict(self, filter=nested),
            **self.latencies,
            "requests": len(self.run.answers),
            **{name: getattr(self.run, name) for name in ("seconds", "busy", "pieces_s")},
            **{name: getattr(self, name) for name in ("kept_up", "doubts")},
            "outcomes": [each.record(self.run.began) for each in self.run.answers],
        }


def judge(load: OfferedLoad, run: LoadRun, slo: Mapping[str, float]) -> LoadLevel:
    """Compute all figures of one run; `slo` has milliseconds by latency."""
    done = [each for each in run.answers if each.result == OK]
    failed = [each for each in run.answers if each.result != OK]
    latencies = [each.latencies for each in done]
    kept = sum(all(each.get(name, 0.0) <= bound for name, bound in slo.items()) for each in latencies)
    values = {
        **{name: [each[name] for each in latencies if name in each] for name in ("ttft", "tpot", "e2e")},
        "itl": [1e3 * gap for each in done for gap in each.gaps],
        "refusal": [1e3 * (each.ended - each.started) for each in failed if each.result.isdigit()],
        "lateness": [1e3 * (each.started - each.scheduled) for each in run.answers],
    }
    return LoadLevel(
        load=load,
        run=run,
        results=dict(collections.Counter(each.result for each in run.answers).most_common()),
        messages={each.result: each.message for each in reversed(failed) if each.message},
        request_s=len(done) / run.seconds,
        output_tok_s=sum(each.output_tokens for each in done) / run.seconds,
        prompt_tokens=_mean([each.prompt_tokens for each in done]),
        output_tokens=_mean([each.output_tokens for each in done]),
        latencies={name: distribution(some) for name, some in values.items()},
        goodput=kept / run.seconds if slo else None,
        good=kept / len(run.answers) if slo else None,
        queue_grew=load.rate is not None and _grows(run, done),
    )


def distribution(values: Sequence[float]) -> dict[str, float]:
    """The distribution of any number of values; NaN where there is nothing."""
    quantiles = {f"p{part}": percentile(values, part / 100) for part in (50, 90, 99)}
    return {"mean": _mean(values), **quantiles, "most": max(values, default=float("nan"))}


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else float("nan")


def _grows(run: LoadRun, done: Sequence[Outcome]) -> bool:
    """True if the last third took clearly longer than the first, and the more so the longer the run was.

    Where requests come 8% faster than they are served, each waits that fraction of the time since the beginning; a crowd
    that came by chance is gone soon.
    """
    taken = [each.ended - each.scheduled for each in sorted(done, key=lambda each: each.scheduled)]
    third = len(taken) // 3
    if third < 4:
        return False
    first, last = statistics.median(taken[:third]), statistics.median(taken[-third:])
    span = max(each.scheduled for each in run.answers) - run.began
    return last > SLOWDOWN * first and last - first > DRIFT * span


def find_knee(levels: Sequence[LoadLevel]) -> int | None:
    """The place of the knee among levels in the order of their loads; None if the server kept up with none.

    A server's *power* is throughput over response time (Kleinrock 1979). It grows with the load as long as answers
    come about as fast as before, and falls as soon as more load only makes the queue longer; its maximum is the knee.
    """
    powers = [
        level.output_tok_s / level.latencies["e2e"]["p50"] if level.kept_up else 0.0 for level in levels
    ]
    most = max(powers, default=0.0)
    return powers.index(most) if most > 0 else None


def heaviest_good(levels: Sequence[LoadLevel]) -> int | None:
    """The place of the heaviest load at which nine of ten requests keep the objectives."""
    return max(
        (place for place, level in enumerate(levels) if (level.good or 0.0) >= GOOD_ENOUGH), default=None
    )


LATENCIES: Final = {
    "ttft": "TTFT: to the first text",
    "itl": "ITL: between two pieces",
    "tpot": "TPOT: per further token",
    "e2e": "E2E: whole answer",
    "refusal": "refused requests",
    "lateness": "sent late by the client",
}
COMPARED: Final = {"ttft": "TTFT", "itl": "ITL", "e2e": "E2E"}
"""The figures by which the loads of a sweep are compared."""


def show_levels(title: str, levels: Sequence[LoadLevel]) -> None:
    """Print one load in full, or the loads of a sweep side by side; then the errors."""
    is_sweep = len(levels) > 1
    show(title, _sweep_table(levels) if is_sweep else _level_table(levels[0]))
    show(*(say_knee(levels) if is_sweep else _say_level(levels[0])))
    for level in levels:
        for result, count in level.results.items():
            if result != OK:
                said = f": {level.messages[result]}" if result in level.messages else ""
                show(f"{level.load}: {count} x {result}{said}")
        for doubt in level.doubts:
            show(f"* {level.load}: {doubt}")


def _level_table(level: LoadLevel) -> Table:
    """Every latency of one load, in milliseconds."""
    rows = [
        (label, *map(_milliseconds, level.latencies[name].values()))
        for name, label in LATENCIES.items()
        if not math.isnan(level.latencies[name]["p50"])
    ]
    return table([f"ms at {level.load}", "mean", "p50", "p90", "p99", "most"], rows)


def _say_level(level: LoadLevel) -> list[str]:
    """The other figures of one load, in lines."""
    run = level.run
    rates = f"{number(level.request_s)} req/s, {number(level.output_tok_s)} output tok/s"
    tokens = f"{level.prompt_tokens:.0f} tokens in, {level.output_tokens:.0f} out on average"
    lines = [f"{level.completed} of {len(run.answers)} answers in {run.seconds:.1f} s: {rates}; {tokens}"]
    if level.load.rate is not None and not level.kept_up:
        lines.append("the server did not keep up: latencies are those of a queue that grows; offer less")
    if level.goodput is not None:
        kept = f"{level.good:.1%} of the requests kept the objectives"
        lines.append(f"goodput {number(level.goodput)} req/s: {kept}")
    return [*lines, f"the client used {run.busy:.0%} of a core for {number(run.pieces_s)} pieces per second"]


def _sweep_table(levels: Sequence[LoadLevel]) -> Table:
    """One line per load; latencies in milliseconds, p50 / p99; `*` behind a load whose figures are in doubt."""
    has_slo, knee, rows = levels[0].good is not None, find_knee(levels), []
    for place, level in enumerate(levels):
        spreads = [level.latencies[name] for name in COMPARED]
        state = "growing" if level.queue_grew else "" if level.kept_up else "behind"
        rows.append(
            [
                f"{level.load}{'*' * bool(level.doubts)}",
                f"{level.completed}/{len(level.run.answers)}",
                f"{level.request_s:.3g}",
                number(level.output_tok_s),
                *(f"{_milliseconds(each['p50'])} / {_milliseconds(each['p99'])}" for each in spreads),
                *[f"{level.goodput or 0.0:.3g} ({level.good or 0.0:.0%})"] * has_slo,
                "knee" if place == knee else state,
            ]
        )
    names = ["load", "answers", "req/s", "tok/s", *(f"{each} p50 / p99" for each in COMPARED.values())]
    return table([*names, *["goodput"] * has_slo, ""], rows, box=box.SIMPLE_HEAD)


def say_knee(levels: Sequence[LoadLevel]) -> list[str]:
    """The findings of a sweep, in sentences."""
    place, lightest = find_knee(levels), levels[0]
    if not any(level.completed for level in levels):
        return ["no knee: no request was answered"]
    if place is None:
        got = f"{lightest.request_s:.3g} answers per second at {lightest.load}"
        advice = "offer less, or send more requests (--num-prompts)"
        return [f"no knee: the server kept up with no load ({got}); {advice}"]
    at = levels[place]
    found = f"{number(at.output_tok_s)} tok/s at {_milliseconds(at.latencies['e2e']['p50'])} ms"
    beyond = "; it is the heaviest load tried, so it may lie beyond" if at is levels[-1] else ""
    lines = [f"knee: {at.load} gives the most throughput per response time, {found}{beyond}"]
    if lightest.good is not None:
        best = heaviest_good(levels)
        named = "no load" if best is None else f"{levels[best].load} is the heaviest load that"
        lines.append(f"objectives: {named} keeps them for {GOOD_ENOUGH:.0%} of the requests")
    if any(level.queue_grew for level in levels):
        lines.append("growing: answers took longer and longer, so the server cannot sustain this load")
    return lines


def _milliseconds(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def draw_plot(path: str, title: str, levels: Sequence[LoadLevel]) -> None:
    """Write a PNG with a panel for each latency."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(13, 4.5), layout="constrained")
    figure.suptitle(title, fontsize=10)
    answered, knee = [each for each in levels if each.completed], find_knee(levels)
    throughput = [each.output_tok_s for each in answered]
    for axes, (latency, label) in zip(figure.subplots(1, len(COMPARED)), COMPARED.items(), strict=True):
        for quantile in ("p50", "p90", "p99"):
            values = [each.latencies[latency][quantile] for each in answered]
            axes.plot(throughput, values, marker="o", markersize=4, label=quantile)
        for level in answered:
            place = (level.output_tok_s, level.latencies[latency]["p50"])
            axes.annotate(f"{level.load}", place, textcoords="offset points", xytext=(4, 4), fontsize=7)
        if knee is not None:
            axes.axvline(levels[knee].output_tok_s, color="0.6", linestyle=":", label="knee")
        axes.set(xlabel="output tokens per second", ylabel=f"{label}, ms", ylim=(0, None))
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, format="png", dpi=130)
