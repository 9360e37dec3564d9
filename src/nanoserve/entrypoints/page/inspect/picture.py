"""Draws a run as a PNG: its sequences, its steps and its blocks over the same axis of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nanoserve.entrypoints.page.inspect import block_panel, row_panel, step_panel
from nanoserve.entrypoints.page.inspect.chart import Chart, Trace, gather
from nanoserve.entrypoints.page.inspect.row_panel import plain
from nanoserve.ports.errors import BadValueError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT, DPI = 16.0, 12.0, 100
"""Inches and dots per inch: 1600 by 1200 pixels."""
BREAK: Final = "#CC79A7"


def check_matplotlib() -> None:
    """Raise `BadValueError` where pictures cannot be drawn."""
    try:
        import matplotlib.figure  # noqa: F401, PLC0415 - an extra
    except ImportError:
        message = "needs matplotlib: pip install 'nanoserve[plot]' (or pip install matplotlib)"
        raise BadValueError("png", message) from None


def draw(trace: Trace, path: str, *, title: str | None = None) -> None:
    """Write a PNG of a trace. Raises `BadValueError` without matplotlib, `TraceError` and `OSError`."""
    check_matplotlib()
    draw_chart(gather(trace), path, title=title)


def draw_chart(chart: Chart, path: str, *, title: str | None = None) -> None:
    """Write a PNG of what was gathered from a trace."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - as above

    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, layout="constrained")
    sequences, steps, blocks = figure.subplots(3, 1, sharex=True, height_ratios=(5, 2.5, 4.5))
    row_panel.draw(sequences, chart)
    step_panel.draw(steps, chart)
    block_panel.draw(blocks, chart)
    for axes in (sequences, steps, blocks):
        _finish(axes, chart)
    blocks.set_xlabel("step")
    blocks.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(title or _headline(chart), fontsize=12, parse_math=False)
    figure.savefig(path, format="png")


def _finish(axes: Axes, chart: Chart) -> None:
    first = chart.first_step - 0.5
    for at in chart.breaks:
        axes.axvline(first + at, color=BREAK, linewidth=2, linestyle="--")
    axes.set_xlim(first, first + max(chart.num_steps, 1))
    handles, labels = axes.get_legend_handles_labels()
    legend: Any = axes.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(1.003, 1.0), fontsize=9, frameon=False
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _headline(chart: Chart) -> str:
    header = chart.header
    return (
        f"{plain(header.model)} on {plain(header.device)} ({plain(header.dtype)}): "
        f"{len(chart.rows):,} sequences, {chart.num_steps:,} steps in {chart.seconds:,.2f} s, "
        f"{header.num_blocks:,} blocks of {header.block_size} tokens; nanoserve {plain(header.release)}, "
        f"{plain(header.started[:19])}"
    )
