"""A picture of a sweep: latency against throughput, one point per load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nanoserve.entrypoints.bench.serving.knee import Knee
from nanoserve.entrypoints.bench.serving.level import Level
from nanoserve.entrypoints.bench.serving.tables import name_load
from nanoserve.ports.errors import BadValueError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


def draw_plot(path: str, title: str, levels: Sequence[Level], knee: Knee) -> None:
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


def _draw_panel(axes: Axes, latency: str, label: str, levels: Sequence[Level]) -> None:
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
