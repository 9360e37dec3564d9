"""The block map: cells are what the tables say, and a long run keeps few columns."""

from __future__ import annotations

import attrs
import pytest

from nanoserve.domain.tracing.replay import Replay
from nanoserve.entrypoints.app.traces.reader import walk
from nanoserve.entrypoints.page.inspect import block_map
from nanoserve.entrypoints.page.inspect.block_map import CACHED, FREE, SHARED, BlockMap, owner_colour
from nanoserve.entrypoints.page.inspect.chart import gather
from nanoserve.entrypoints.page.inspect.rows import Rows
from nanoserve.ports.driven import TraceError
from nanoserve.ports.trace import PlannedStep, Snapshot, TracedSequence
from tests.unit.entrypoints.recorded_run import RecordedRun, recorded_run


@pytest.fixture(scope="module")
def run() -> RecordedRun:
    return recorded_run()


def expected_cells(books: Replay, num_blocks: int) -> list[int]:
    """Naively, block by block; keys are the numbers of the rows."""
    cells = []
    for block in range(1, num_blocks + 1):
        holders = [key for key, each in books.sequences.items() if each.tables and block in each.tables[0]]
        if len(holders) == 1:
            cells.append(owner_colour(holders[0]))
        else:
            cells.append(SHARED if holders else CACHED if block in books.findable[0] else FREE)
    return cells


def columns_of(run: RecordedRun) -> list[list[int]]:
    """After each step, what the map should hold."""
    expected: list[list[int]] = []
    for record, books in walk(run):
        steps = (
            0 if isinstance(record, Snapshot) else sum(isinstance(e, PlannedStep) for e in record.happened)
        )
        column = expected_cells(books, run.header.num_blocks)
        if steps:
            expected.extend([column] * steps)
        elif expected:
            expected[-1] = column
    return expected


def padded(column: bytearray, num_blocks: int) -> list[int]:
    cells = list(column[1:])
    assert column[0] == FREE
    return cells + [FREE] * (num_blocks - len(cells))


def test_cells_are_what_the_tables_say(run: RecordedRun) -> None:
    expected = columns_of(run)
    (columns,) = gather(run).blocks.columns
    assert [padded(each, run.header.num_blocks) for each in columns] == expected
    kinds = {cell for column in expected for cell in column}
    assert {FREE, CACHED, SHARED} < kinds


def test_a_block_that_the_engine_has_not_is_an_error(run: RecordedRun) -> None:
    first = run.records[0]
    assert isinstance(first, Snapshot)
    hostile = attrs.evolve(first, findable=((10**12,),))
    with pytest.raises(TraceError, match=f"block {10**12} of {run.header.num_blocks}"):
        gather(RecordedRun(run.header, [hostile]))


def test_a_large_pool_keeps_fewer_columns(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_map, "MOST_CELLS", 8 * (run.header.num_blocks + 1))
    blocks = gather(run).blocks
    assert len(blocks.columns[0]) <= 8
    assert sum(map(len, blocks.columns[0])) <= 8 * (run.header.num_blocks + 1)


def test_a_long_run_keeps_evenly_spaced_columns(run: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = columns_of(run)
    monkeypatch.setattr(block_map, "MOST_COLUMNS", 10)
    blocks = gather(run).blocks
    assert blocks.stride > 1
    assert 10 <= len(blocks.columns[0]) <= 20
    for number, column in enumerate(blocks.columns[0][:-1]):
        assert padded(column, run.header.num_blocks) == whole[number * blocks.stride]


def test_states_have_the_colour_of_their_sequence() -> None:
    living = TracedSequence(
        key=0, request_id="a", index=0, num_prompt_tokens=9, max_total_tokens=20, phase="running", row=0,
        tables=((1, 2), ()), states=((1, 3, 2),),
    )  # fmt: skip
    start = Snapshot(at=0.0, sequences=(living,), findable=((), (1, 2)))
    rows = Rows()
    rows.start(start)
    cells = BlockMap((4, 3))
    rows.num_steps = 1
    cells.take(Replay(start), rows)
    ((full,), (states,)) = cells.columns
    mine = owner_colour(0)
    assert (list(full), list(states)) == ([FREE, mine, mine], [FREE, CACHED, mine, mine])
