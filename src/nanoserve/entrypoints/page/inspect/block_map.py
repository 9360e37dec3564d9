"""Whose each block was over time, at evenly spaced moments of a run of any length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nanoserve.domain.tracing.replay import Replay
from nanoserve.entrypoints.page.inspect.rows import Rows
from nanoserve.ports.step import SINK_BLOCK
from nanoserve.ports.trace import TracedSequence

FREE: Final = 0
CACHED: Final = 1
OWNED: Final = 2
NUM_COLOURS: Final = 8
SHARED: Final = OWNED + NUM_COLOURS
"""What a cell holds: free; free with content that can be found; one of the owners' colours; held by several tables."""
MOST_COLUMNS: Final = 1200
MOST_CELLS: Final = 2**28
"""Of all columns of a map, a byte each."""


class BlockMap:
    """One column per `stride` steps, a cell per block; of the columns, half are dropped whenever there are too many.

    Attributes:
        pools: blocks of each cache group, or states of a recurrent one.
        columns: for each cache group, the cells by block number, as far as the column reaches; the sink is cell 0.
        stride: steps from one column to the next.
    """

    def __init__(self, pools: Sequence[int]) -> None:
        self.pools = tuple(pools)
        self._most = max(min(MOST_COLUMNS, MOST_CELLS // (2 * sum(count + 1 for count in pools))), 1)
        self.columns: list[list[bytearray]] = [[] for _ in pools]
        self.stride = 1

    def take(self, books: Replay, rows: Rows) -> None:
        """Note the blocks as they are after the newest step; columns that were passed over are the same.

        Raises `IndexError` where there is a block that the engine has not.
        """
        wanted = -(-rows.num_steps // self.stride)
        if self.stride > 1 and wanted == len(self.columns[0]):
            return
        for group, columns in enumerate(self.columns):
            column = _column(books, rows, group, self.pools[group])
            del columns[max(wanted - 1, 0) :]
            columns.extend(column for _ in range(wanted - len(columns)))
        if wanted > 2 * self._most:
            self.columns = [columns[::2] for columns in self.columns]
            self.stride *= 2


def _column(books: Replay, rows: Rows, group: int, num_blocks: int) -> bytearray:
    findable, references = books.findable[group], books.references[group]
    tables = {
        each.key: (*each.tables[group], *_states(each, group))
        for each in books.sequences.values()
        if each.tables
    }
    height = 1 + max((max(blocks, default=0) for blocks in (findable, *tables.values())), default=0)
    if height > num_blocks + 1:
        raise IndexError(f"block {height - 1} of {num_blocks}")
    cells = bytearray(height)
    for block in findable:
        cells[block] = CACHED
    for key, table in tables.items():
        colour = owner_colour(rows.number(key))
        for block in table:
            cells[block] = colour if references[block] == 1 else SHARED
    cells[SINK_BLOCK] = FREE
    return cells


def _states(sequence: TracedSequence, group: int) -> tuple[int, ...]:
    """The live state and the newest snapshot, where the group is recurrent."""
    return next((tuple(held) for each, *held in sequence.states if each == group), ())


def owner_colour(row: int) -> int:
    """The cell of a block that one row's sequence holds."""
    return OWNED + row % NUM_COLOURS
