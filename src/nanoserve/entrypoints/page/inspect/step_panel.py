"""The picture's middle: what each step computes, against what it may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nanoserve.entrypoints.page.inspect.chart import Chart
from nanoserve.entrypoints.page.inspect.colours import DOING
from nanoserve.entrypoints.page.inspect.rows import Doing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_COLUMNS: Final = 1400
FAR: Final = 4
"""A budget this many times above the fullest step is told instead of drawn."""


def draw(axes: Axes, chart: Chart) -> None:
    """Draw prefill over decode tokens; of several steps in one column their mean."""
    import numpy as np  # noqa: PLC0415 - comes with matplotlib

    stride = max(-(-chart.num_steps // MOST_COLUMNS), 1)
    decode, prefill = (_means(values or [0], stride) for values in (chart.decode, chart.prefill))
    left = chart.first_step - 0.5 + np.minimum(np.arange(len(decode) + 1) * stride, max(chart.num_steps, 1))
    total = decode + prefill
    axes.stairs(decode, left, fill=True, color=DOING[Doing.DECODE], label="decode tokens")
    axes.stairs(total, left, baseline=decode, fill=True, color=DOING[Doing.PREFILL], label="prefill tokens")
    _draw_budget(axes, chart.header.max_num_batched_tokens, max(float(total.max()), 1.0))
    axes.set_ylabel("tokens per step" if stride == 1 else f"tokens per step,\nmean of {stride}")


def _draw_budget(axes: Axes, budget: int, fullest: float) -> None:
    if budget <= fullest * FAR:
        axes.axhline(budget, color="black", linewidth=1, linestyle=":", label=f"budget: {budget:,}")
        axes.set_ylim(0, budget * 1.08)
    else:
        axes.scatter([], [], marker="$\\uparrow$", color="black", label=f"budget: {budget:,}")
        axes.set_ylim(0, fullest * 1.15)


def _means(values: list[int], stride: int) -> Any:
    import numpy as np  # noqa: PLC0415 - comes with matplotlib

    starts = np.arange(0, len(values), stride)
    counts = np.diff(np.append(starts, len(values)))
    return np.add.reduceat(np.asarray(values, dtype=float), starts) / counts
