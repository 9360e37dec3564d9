"""What `nanoserve bench serve` shows: one load in full, a line per load of a sweep, a plot of latency over throughput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.table import Table

from nanoserve.entrypoints.bench.report import number, show, table
from nanoserve.entrypoints.bench.serving.client import OK
from nanoserve.entrypoints.bench.serving.level import GOOD_ENOUGH, LoadLevel, find_knee, heaviest_good

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


def show_levels(title: str, levels: Sequence[LoadLevel]) -> None:
    """Print one load in full, or the loads of a sweep side by side; then what went wrong."""
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
    """The rest of what is known of one load, in lines."""
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
    """What the sweep found, in sentences."""
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
