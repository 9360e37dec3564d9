"""The picture's lower part: whose each block of the KV cache was after each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nanoserve.entrypoints.inspect.block_map import CACHED, FREE, SHARED
from nanoserve.entrypoints.inspect.chart import Chart
from nanoserve.entrypoints.inspect.colours import BLOCKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES: Final = 600
ROOM: Final = 1.3
"""Blocks that were never used are drawn where they are few beside those that were."""


def draw(axes: Axes, chart: Chart) -> None:
    """Draw every cache group, one below the other."""
    from matplotlib.colors import ListedColormap  # noqa: PLC0415 - an extra
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - as above

    cells, num_blocks = _cells(chart)
    num_groups = len(chart.blocks.columns)
    left, height = chart.first_step - 0.5, num_groups * num_blocks
    drawn = min(cells.shape[1] * chart.blocks.stride, max(chart.num_steps, 1))
    axes.imshow(
        cells,
        aspect="auto",
        interpolation="nearest",
        extent=(left, left + drawn, height + 0.5, 0.5),
        cmap=ListedColormap(BLOCKS),
        vmin=FREE,
        vmax=SHARED,
    )
    for group in range(1, num_groups):
        axes.axhline(group * num_blocks + 0.5, color="black", linewidth=1)
    axes.set_ylabel("block, after the step" if num_groups == 1 else "block after the step, group by group")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _explain(axes, num_blocks, chart.header.num_blocks)


def _explain(axes: Axes, num_drawn: int, num_blocks: int) -> None:
    axes.scatter([], [], marker="s", s=70, color=BLOCKS[2], label="held by one sequence,\nin its colour")
    for code, label in ((SHARED, "shared by several"), (CACHED, "free, cached"), (FREE, "free")):
        axes.scatter([], [], marker="s", s=70, color=BLOCKS[code], edgecolor="0.6", label=label)
    if num_drawn < num_blocks:
        axes.scatter([], [], alpha=0, label=f"{num_drawn + 1:,} to {num_blocks:,}: never used")


def _cells(chart: Chart) -> tuple[Any, int]:
    """The cells of all groups, and how many blocks of each are drawn."""
    import numpy as np  # noqa: PLC0415 - comes with matplotlib

    used = max((len(each) - 1 for columns in chart.blocks.columns for each in columns), default=0)
    num_blocks = chart.header.num_blocks
    num_drawn = max(num_blocks if used * ROOM >= num_blocks else used, 1)
    stride = -(-num_drawn // MOST_LINES)
    groups = []
    for columns in chart.blocks.columns:
        cells = np.zeros((num_drawn, max(len(columns), 1)), dtype=np.uint8)
        for number, column in enumerate(columns):
            held = np.frombuffer(column, dtype=np.uint8)[1 : num_drawn + 1]
            cells[: len(held), number] = held
        groups.append(np.maximum.reduceat(cells, np.arange(0, num_drawn, stride), axis=0))
    return np.concatenate(groups), num_drawn
