"""What `nanoserve bench serve` shows: one load in full, a line per load of a sweep, a plot of latency over throughput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import attrs
from rich import box
from rich.table import Table

from nanoserve.entrypoints.bench.report import number, show, table
from nanoserve.entrypoints.bench.serving.level import GOOD_ENOUGH, LoadKnee, LoadLevel
from nanoserve.entrypoints.bench.serving.requests import OK

LATENCIES: Final = {
    "ttft": "TTFT: to the first text",
    "itl": "ITL: between two pieces",
    "tpot": "TPOT: per further token",
    "e2e": "E2E: whole answer",
    "refusal": "refused requests",
    "lateness": "sent late by the client",
}
COMPARED: Final = {"ttft": "TTFT", "itl": "ITL", "e2e": "E2E"}
"""What the loads of a sweep are compared by."""


def show_levels(title: str, levels: Sequence[LoadLevel], knee: LoadKnee) -> None:
    """Print one load in full, or the loads of a sweep side by side; then what went wrong."""
    show(title)
    if len(levels) == 1:
        show(_level_table(levels[0]), *_say_level(levels[0]))
    else:
        show(_sweep_table(levels, knee), *say_knee(levels, knee))
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
        (label, *(_milliseconds(each) for each in attrs.astuple(level.latencies[name])))
        for name, label in LATENCIES.items()
        if not math.isnan(level.latencies[name].p50)
    ]
    return table([f"ms at {level.load}", "mean", "p50", "p90", "p99", "most"], rows)


def _say_level(level: LoadLevel) -> list[str]:
    """The rest of what is known of one load, in lines."""
    run = level.run
    rates = f"{number(level.request_s)} req/s, {number(level.output_tok_s)} output tok/s"
    tokens = f"{level.prompt_tokens:.0f} tokens in, {level.output_tokens:.0f} out on average"
    lines = [f"{level.completed} of {len(run.outcomes)} answers in {run.seconds:.1f} s: {rates}; {tokens}"]
    if level.load.rate is not None and not level.kept_up:
        lines.append("the server did not keep up: latencies are those of a queue that grows; offer less")
    if level.goodput is not None:
        lines.append(
            f"goodput {number(level.goodput)} req/s: {level.good:.1%} of the requests kept the objectives"
        )
    lines.append(f"the client used {run.busy:.0%} of a core for {number(run.pieces_s)} pieces per second")
    return lines


def _sweep_table(levels: Sequence[LoadLevel], knee: LoadKnee) -> Table:
    """One line per load; latencies in milliseconds, p50 / p99; `*` behind a load whose figures are in doubt."""
    has_slo = any(level.goodput is not None for level in levels)
    rows = []
    for place, level in enumerate(levels):
        cells = [f"{level.load}{'*' * bool(level.doubts)}", f"{level.completed}/{len(level.run.outcomes)}"]
        cells += [f"{level.request_s:.3g}", number(level.output_tok_s)]
        for spread in (level.latencies[name] for name in COMPARED):
            cells.append(f"{_milliseconds(spread.p50)} / {_milliseconds(spread.p99)}")
        if has_slo:
            cells.append(f"{level.goodput or 0.0:.3g} ({level.good or 0.0:.0%})")
        marks = ["knee"] * (place == knee.at) + ["growing"] * level.queue_grew
        marks += ["behind"] * (not level.kept_up and not level.queue_grew)
        rows.append([*cells, ", ".join(marks)])
    names = ["load", "answers", "req/s", "tok/s", *(f"{each} p50 / p99" for each in COMPARED.values())]
    return table([*names, *(["goodput"] if has_slo else []), ""], rows, box=box.SIMPLE_HEAD)


def say_knee(levels: Sequence[LoadLevel], knee: LoadKnee) -> list[str]:
    """What the sweep found, in sentences."""
    if knee.at is None:
        return [_say_no_knee(levels)]
    at = levels[knee.at]
    found = f"{number(at.output_tok_s)} tok/s at {_milliseconds(at.latencies['e2e'].p50)} ms"
    beyond = "; it is the heaviest load tried, so it may lie beyond" if knee.is_last else ""
    lines = [f"knee: {at.load} gives the most throughput per response time, {found}{beyond}"]
    if any(level.good is not None for level in levels):
        best = knee.best_within_slo
        named = "no load" if best is None else f"{levels[best].load} is the heaviest load that"
        lines.append(f"objectives: {named} keeps them for {GOOD_ENOUGH:.0%} of the requests")
    if any(level.queue_grew for level in levels):
        lines.append("growing: answers took longer and longer, so the server cannot sustain this load")
    return lines


def _say_no_knee(levels: Sequence[LoadLevel]) -> str:
    if not any(level.completed for level in levels):
        return "no knee: no request was answered"
    lightest = levels[0]
    got = f"{lightest.request_s:.3g} answers per second at {lightest.load}"
    return (
        f"no knee: the server kept up with no load ({got}); offer less, or send more requests (--num-prompts)"
    )


def _milliseconds(value: float) -> str:
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def draw_plot(path: str, title: str, levels: Sequence[LoadLevel], knee: LoadKnee) -> None:
    """Write a PNG with a panel for each latency."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(13, 4.5), layout="constrained")
    figure.suptitle(title, fontsize=10)
    answered = [each for each in levels if each.completed]
    throughput = [each.output_tok_s for each in answered]
    for axes, (latency, label) in zip(figure.subplots(1, len(COMPARED)), COMPARED.items(), strict=True):
        spreads = [each.latencies[latency] for each in answered]
        for quantile in ("p50", "p90", "p99"):
            values = [getattr(each, quantile) for each in spreads]
            axes.plot(throughput, values, marker="o", markersize=4, label=quantile)
        for level, spread in zip(answered, spreads, strict=True):
            text = f"{level.load.rate or level.load.concurrency:g}"
            place = (level.output_tok_s, spread.p50)
            axes.annotate(text, place, textcoords="offset points", xytext=(4, 4), fontsize=7)
        axes.set(xlabel="output tokens per second", ylabel=f"{label}, ms")
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        if knee.at is not None:
            at = levels[knee.at]
            axes.axvline(at.output_tok_s, color="0.6", linestyle=":", label=f"knee: {at.load}")
        axes.legend(fontsize=8)
    figure.savefig(path, format="png", dpi=130)
