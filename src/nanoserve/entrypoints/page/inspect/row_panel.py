"""The picture's upper part: a Gantt row per sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nanoserve.entrypoints.page.inspect.block_map import owner_colour
from nanoserve.entrypoints.page.inspect.chart import Chart
from nanoserve.entrypoints.page.inspect.colours import BLOCKS, DOING, MARKS
from nanoserve.entrypoints.page.inspect.rows import Doing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_COLUMNS: Final = 1400
MOST_LINES: Final = 450
"""Cells of the drawing at most; of several steps or rows in one cell the most telling one is shown."""
MOST_LABELS: Final = 48
MOST_MARKED_ROWS: Final = 150
MOST_LETTERS: Final = 18
MOST_NUMBERED_STEPS: Final = 60
_CODES: Final = {doing: code for code, doing in enumerate(Doing, start=1)}


def draw(axes: Axes, chart: Chart) -> None:
    """Draw all rows, the first on top."""
    from matplotlib.colors import ListedColormap  # noqa: PLC0415 - an extra
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - as above

    num_rows, left = max(len(chart.rows), 1), chart.first_step - 0.5
    axes.imshow(
        _cells(chart),
        aspect="auto",
        interpolation="nearest",
        extent=(left, left + max(chart.num_steps, 1), num_rows - 0.5, -0.5),
        cmap=ListedColormap(["white", *(DOING[doing] for doing in Doing)]),
        vmin=0,
        vmax=len(Doing),
    )
    for doing in Doing:
        axes.scatter([], [], marker="s", s=70, color=DOING[doing], edgecolor="0.6", label=doing.value)
    axes.set_ylabel("sequence")
    if num_rows <= MOST_MARKED_ROWS:
        _mark(axes, chart)
    if num_rows <= MOST_LABELS:
        _label(axes, chart)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _cells(chart: Chart) -> Any:
    import numpy as np  # noqa: PLC0415 - comes with matplotlib

    num_steps, num_rows = max(chart.num_steps, 1), max(len(chart.rows), 1)
    num_columns, num_lines = min(num_steps, MOST_COLUMNS), min(num_rows, MOST_LINES)
    cells = np.zeros((num_lines, num_columns), dtype=np.uint8)
    for row in chart.rows:
        line = cells[row.number * num_lines // num_rows]
        for bar in row.bars:
            start = bar.start * num_columns // num_steps
            stop = max(-(-bar.stop * num_columns // num_steps), start + 1)
            np.maximum(line[start:stop], _CODES[bar.doing], out=line[start:stop])
    return cells


def _mark(axes: Axes, chart: Chart) -> None:
    left = chart.first_step - 0.5
    for what, (marker, colour, label) in MARKS.items():
        found = [
            (left + each.at, row.number) for row in chart.rows for each in row.marks if each.what == what
        ]
        if found:
            steps, numbers = zip(*found, strict=True)
            axes.scatter(steps, numbers, marker=marker, s=26, color=colour, label=label, zorder=3)


def _label(axes: Axes, chart: Chart) -> None:
    numbers = [row.number for row in chart.rows]
    axes.set_yticks(numbers, [shortened(row.label, MOST_LETTERS) for row in chart.rows], fontsize=8)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    for number in numbers[1:]:
        axes.axhline(number - 0.5, color="white", linewidth=1.5, zorder=2)
    axes.tick_params(axis="y", length=0, pad=12)
    axes.scatter(
        [-0.005] * len(numbers),
        numbers,
        marker="s",
        s=22,
        color=[BLOCKS[owner_colour(number)] for number in numbers],
        transform=axes.get_yaxis_transform(),
        clip_on=False,
    )
    if chart.num_steps <= MOST_NUMBERED_STEPS:
        _number_chunks(axes, chart)


def _number_chunks(axes: Axes, chart: Chart) -> None:
    """How many tokens each prefill chunk has, where there is room for it."""
    for row in chart.rows:
        for bar in row.bars:
            if bar.num_tokens:
                at = chart.first_step + bar.start
                text = str(bar.num_tokens)
                axes.text(at, row.number, text, ha="center", va="center", fontsize=7, zorder=4, clip_on=True)


def plain(text: str) -> str:
    """What any font can show, in one line: everything but printable ASCII as escapes."""
    return text.encode("unicode_escape").decode()


def shortened(text: str, most: int) -> str:
    """As `plain`, in at most so many letters."""
    shown = plain(text)
    return shown if len(shown) <= most else f"{shown[: most - 2]}.."
