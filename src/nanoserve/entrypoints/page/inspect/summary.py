"""A run in a few lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from nanoserve.entrypoints.compose.printable import printable
from nanoserve.entrypoints.page.inspect.chart import Chart


def summary_table(chart: Chart, name: str) -> Table:
    """The figures of a run, for a terminal."""
    table = Table(box=box.SIMPLE, show_header=False, title=Text(printable(name)), title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, value in _figures(chart):
        table.add_row(label, Text(printable(value)))
    return table


def _figures(chart: Chart) -> Iterator[tuple[str, str]]:
    header = chart.header
    yield "engine", f"{header.model} on {header.device} ({header.dtype}), nanoserve {header.release}"
    yield "started", header.started
    yield "time", f"{chart.seconds:,.3f} s"
    yield "steps", f"{chart.num_steps:,}"
    yield "sequences", _sequences(chart)
    yield "tokens", _tokens(chart)
    yield "computed", f"{sum(chart.prefill):,} tokens of prefill, {sum(chart.decode):,} of decode"
    yield "preemptions", f"{chart.preemptions:,}"
    yield "prefix hits", _hits(chart)
    if chart.breaks:
        yield "interruptions", f"{len(chart.breaks):,} (parts left out, or the engine was started again)"


def _sequences(chart: Chart) -> str:
    ended = ", ".join(f"{reason} {count:,}" for reason, count in sorted(chart.finished.items()))
    return f"{len(chart.rows):,}" + (f"; ended: {ended}" if ended else "")


def _tokens(chart: Chart) -> str:
    rate = f", {chart.generated_tokens / chart.seconds:,.1f} per second" if chart.seconds else ""
    return f"{chart.generated_tokens:,} generated{rate}"


def _hits(chart: Chart) -> str:
    if not chart.prefix_queries:
        return "none looked up"
    share = chart.prefix_hits / chart.prefix_queries
    return f"{share:.1%} ({chart.prefix_hits:,} of {chart.prefix_queries:,} prompt tokens)"
