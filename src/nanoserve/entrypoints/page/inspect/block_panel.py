"""The picture's lower part: whose each block of the KV cache was after each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nanoserve.entrypoints.page.inspect.block_map import CACHED, FREE, SHARED
from nanoserve.entrypoints.page.inspect.chart import Chart
from nanoserve.entrypoints.page.inspect.colours import BLOCKS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES: Final = 600
ROOM: Final = 1.3
"""Blocks that were never used are drawn where they are few beside those that were."""


def draw(axes: Axes, chart: Chart) -> None:
    """Draw every cache group, one below the other."""
    from matplotlib.colors import ListedColormap  # noqa: PLC0415 - an extra
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - as above

    cells, drawn_of = _cells(chart)
    num_groups, height = len(drawn_of), sum(drawn_of)
    left = chart.first_step - 0.5
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
        axes.axhline(sum(drawn_of[:group]) + 0.5, color="black", linewidth=1)
    axes.set_ylabel("block, after the step" if num_groups == 1 else "block after the step, group by group")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    _explain(axes, max(drawn_of), chart.header.num_blocks)


def _explain(axes: Axes, num_drawn: int, num_blocks: int) -> None:
    axes.scatter([], [], marker="s", s=70, color=BLOCKS[2], label="held by one sequence,\nin its colour")
    for code, label in ((SHARED, "shared by several"), (CACHED, "free, cached"), (FREE, "free")):
        axes.scatter([], [], marker="s", s=70, color=BLOCKS[code], edgecolor="0.6", label=label)
    if num_drawn < num_blocks:
        axes.scatter([], [], alpha=0, label=f"{num_drawn + 1:,} to {num_blocks:,}: never used")


def _cells(chart: Chart) -> tuple[Any, list[int]]:
    """The cells of all groups, and how many blocks of each are drawn."""
    import numpy as np  # noqa: PLC0415 - comes with matplotlib

    drawn_of = [
        _num_drawn(max((len(each) - 1 for each in columns), default=0), num_blocks)
        for columns, num_blocks in zip(chart.blocks.columns, chart.blocks.pools, strict=True)
    ]
    stride = -(-max(drawn_of) // MOST_LINES)
    groups = []
    for columns, num_drawn in zip(chart.blocks.columns, drawn_of, strict=True):
        cells = np.zeros((num_drawn, max(len(columns), 1)), dtype=np.uint8)
        for number, column in enumerate(columns):
            held = np.frombuffer(column, dtype=np.uint8)[1 : num_drawn + 1]
            cells[: len(held), number] = held
        groups.append(np.maximum.reduceat(cells, np.arange(0, num_drawn, stride), axis=0))
    return np.concatenate(groups), drawn_of


def _num_drawn(used: int, num_blocks: int) -> int:
    return max(num_blocks if used * ROOM >= num_blocks else used, 1)
