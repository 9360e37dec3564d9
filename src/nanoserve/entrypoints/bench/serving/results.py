"""What `nanoserve bench serve` shows: one load in full, a line per load of a sweep, a plot of latency over throughput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.table import Table

from nanoserve.entrypoints.bench.serving.level import GOOD_ENOUGH, LatencyDistribution, LoadKnee, LoadLevel
from nanoserve.entrypoints.bench.serving.outcome import OK
from nanoserve.entrypoints.bench.tables import number
from nanoserve.ports.errors import BadValueError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LATENCIES: Final = {
    "ttft": "TTFT: to the first text",
    "itl": "ITL: between two pieces",
    "tpot": "TPOT: per further token",
    "e2e": "E2E: whole answer",
}


def name_load(level: LoadLevel) -> str:
    """What was asked of the server."""
    if level.rate is not None:
        return f"{level.rate:g} req/s"
    return f"{level.concurrency} at once"


def level_table(level: LoadLevel) -> Table:
    """Every latency of one load, in milliseconds."""
    table = Table(f"ms at {name_load(level)}", "mean", "p50", "p90", "p99", "most")
    rows = [(label, getattr(level, name)) for name, label in LATENCIES.items()]
    rows += [("refused requests", level.refusal), ("sent late by the client", level.lateness)]
    for column in table.columns[1:]:
        column.justify = "right"
    for label, spread in rows:
        if not math.isnan(spread.p50):
            table.add_row(label, *_cells(spread))
    return table


def sweep_table(levels: Sequence[LoadLevel], knee: LoadKnee) -> Table:
    """One line per load; latencies in milliseconds, p50 / p99; `*` behind a load whose figures are in doubt."""
    names = ["load", "answers", "req/s", "tok/s", *(f"{each} p50 / p99" for each in ("TTFT", "ITL", "E2E"))]
    has_slo = any(level.goodput is not None for level in levels)
    table = Table(*names, *(["goodput"] if has_slo else []), "", box=box.SIMPLE_HEAD)
    for column in table.columns:
        column.justify = "right"
        column.no_wrap = True
    for place, level in enumerate(levels):
        cells = [name_load(level) + ("*" if level.doubts else ""), f"{level.completed}/{level.requests}"]
        cells += [f"{level.request_s:.3g}", number(level.output_tok_s)]
        cells += [f"{_shown(each.p50)} / {_shown(each.p99)}" for each in (level.ttft, level.itl, level.e2e)]
        if has_slo:
            cells.append(f"{level.goodput or 0.0:.3g} ({level.good or 0.0:.0%})")
        table.add_row(*cells, _mark(level, place, knee))
    return table


def say_level(level: LoadLevel) -> list[str]:
    """The rest of what is known of one load, in lines."""
    rates = f"{number(level.request_s)} req/s, {number(level.output_tok_s)} output tok/s"
    tokens = f"{level.prompt_tokens:.0f} tokens in, {level.output_tokens:.0f} out on average"
    lines = [f"{level.completed} of {level.requests} answers in {level.seconds:.1f} s: {rates}; {tokens}"]
    if level.goodput is not None:
        lines.append(
            f"goodput {number(level.goodput)} req/s: {level.good:.1%} of the requests kept the objectives"
        )
    lines.append(f"the client used {level.busy:.0%} of a core for {number(level.pieces_s)} pieces per second")
    return lines


def say_troubles(level: LoadLevel) -> list[str]:
    """How many requests failed in which way, with what was said of the first of each; and what to hold against the figures."""
    messages = {result: f": {message}" for result, message in level.messages.items()}
    failed = [(count, result) for result, count in level.results.items() if result != OK]
    return [
        *(f"{name_load(level)}: {count} x {result}{messages.get(result, '')}" for count, result in failed),
        *(f"* {name_load(level)}: {doubt}" for doubt in level.doubts),
    ]


def say_knee(levels: Sequence[LoadLevel], knee: LoadKnee) -> list[str]:
    """What the sweep found, in sentences."""
    if knee.at is None:
        return ["no knee: no request was answered"]
    at = levels[knee.at]
    lines = [
        f"knee: {name_load(at)} gives the most throughput per response time, {number(at.output_tok_s)} tok/s at "
        f"{_shown(at.e2e.p50)} ms"
        + ("; it is the heaviest load tried, so it may lie beyond" if knee.is_last else "")
    ]
    if any(level.good is not None for level in levels):
        found = knee.best_within_slo
        best = "no load" if found is None else f"{name_load(levels[found])} is the heaviest load that"
        lines.append(f"objectives: {best} keeps them for {GOOD_ENOUGH:.0%} of the requests")
    if any(level.queue_grew for level in levels):
        lines.append("growing: answers took longer and longer, so this load could not be kept up for ever")
    return lines


def _mark(level: LoadLevel, place: int, knee: LoadKnee) -> str:
    marks = ["knee"] if place == knee.at else []
    return ", ".join([*marks, *(["growing"] if level.queue_grew else [])])


def _cells(spread: LatencyDistribution) -> list[str]:
    return [_shown(each) for each in (spread.mean, spread.p50, spread.p90, spread.p99, spread.most)]


def _shown(milliseconds: float) -> str:
    if math.isnan(milliseconds):
        return ""
    return f"{milliseconds:,.0f}" if milliseconds >= 1000 else f"{milliseconds:.1f}"


PANELS = {"ttft": "TTFT", "itl": "ITL", "e2e": "E2E"}


def check_plot(path: str | None) -> None:
    """Raise before anything is measured where no picture can be drawn or written."""
    if path is None:
        return
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 - an extra
    except ImportError:
        message = (
            "needs matplotlib: pip install 'nanoserve[plot]' (or pip install matplotlib), or leave --plot out"
        )
        raise BadValueError("plot", message) from None
    with open(path, "ab"):  # noqa: PTH123 - only whether it can be opened
        pass


def draw_plot(path: str, title: str, levels: Sequence[LoadLevel], knee: LoadKnee) -> None:
    """Write a PNG."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(13, 4.5), layout="constrained")
    figure.suptitle(title, fontsize=10)
    for axes, (latency, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        _draw_panel(axes, latency, label, [each for each in levels if each.completed])
        if knee.at is not None:
            at = levels[knee.at]
            axes.axvline(at.output_tok_s, color="0.6", linestyle=":", label=f"knee: {name_load(at)}")
        axes.legend(fontsize=8)
    figure.savefig(path, format="png", dpi=130)


def _draw_panel(axes: Axes, latency: str, label: str, levels: Sequence[LoadLevel]) -> None:
    throughput = [each.output_tok_s for each in levels]
    for quantile in ("p50", "p90", "p99"):
        values: list[Any] = [getattr(getattr(each, latency), quantile) for each in levels]
        axes.plot(throughput, values, marker="o", markersize=4, label=quantile)
    for each in levels:
        axes.annotate(
            f"{each.rate:g}" if each.rate is not None else str(each.concurrency),
            (each.output_tok_s, getattr(each, latency).p50),
            textcoords="offset points",
            xytext=(4, 4),
            fontsize=7,
        )
    axes.set_xlabel("output tokens per second")
    axes.set_ylabel(f"{label}, ms")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
