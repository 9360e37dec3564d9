"""What a plan becomes as tensors, number by number."""

from __future__ import annotations

import attrs
import pytest
import torch

from nanoserve.adapters.pytorch.step_inputs import GroupInputs, Rows
from nanoserve.ports.step import SINK_BLOCK, Chunk, TableUpdate
from tests.plans import SIZES, admitted


@pytest.fixture
def rows() -> Rows:
    sizes = attrs.evolve(SIZES, max_num_batched_tokens=20, max_model_len=20)
    made = Rows(sizes, num_groups=2, device=torch.device("cpu"))
    made.admit(admitted(2, (10, 11, 12, 13, 14), (3, 7), (5, 6)))
    made.admit(admitted(0, (20, 21, 22), (9,), (1,)))
    return made


def test_chunks_come_first_and_decoding_rows_after_them(rows: Rows) -> None:
    step = rows.step((Chunk(2, 3, 2, True), Chunk(0, 0, 2, False)), {})
    assert step.token_ids.tolist() == [13, 14, 20, 21]
    assert step.positions.tolist() == [3, 4, 0, 1]
    assert step.query_lengths == (2, 2)
    assert step.context_lengths == (5, 2)
    assert step.logits_indices.tolist() == [1]
    rows.append((2,), torch.tensor([15]))
    step = rows.step((Chunk(0, 2, 1, True),), {2: ()})
    assert step.token_ids.tolist() == [22, 15]
    assert step.positions.tolist() == [2, 5]
    assert step.context_lengths == (3, 6)
    assert step.logits_indices.tolist() == [0, 1]
    rows.append((0, 2), torch.tensor([23, 16]))
    step = rows.step((), {2: (), 0: ()})
    assert step.token_ids.tolist() == [16, 23]
    assert step.positions.tolist() == [6, 3]
    assert step.query_lengths == (1, 1)
    assert step.context_lengths == (7, 4)
    assert step.logits_indices.tolist() == [0, 1]


def places(group: GroupInputs) -> list[tuple[int, int]]:
    """Block and offset of each token."""
    blocks, offsets = group.places
    return list(zip(blocks.tolist(), offsets.tolist(), strict=True))


def test_each_group_has_its_own_tables_and_places(rows: Rows) -> None:
    first, second = rows.step((Chunk(2, 3, 2, True), Chunk(0, 0, 1, False)), {}).groups
    assert first.block_tables.tolist() == [[3, 7], [9, SINK_BLOCK]]
    assert second.block_tables.tolist() == [[5, 6], [1, SINK_BLOCK]]
    assert places(first) == [(3, 3), (7, 0), (9, 0)]
    assert places(second) == [(5, 3), (6, 0), (1, 0)]


def test_updates_write_where_they_say(rows: Rows) -> None:
    updates = (TableUpdate(2, 1, 0, (SINK_BLOCK, 8)), TableUpdate(0, 0, 1, (4,)), TableUpdate(2, 0, 1, (2,)))
    rows.update_tables(updates)
    first, second = rows.step((Chunk(2, 4, 1, True), Chunk(0, 2, 1, True)), {}).groups
    assert first.block_tables.tolist() == [[3, 2], [9, 4]]
    assert second.block_tables.tolist() == [[SINK_BLOCK, 8], [1, SINK_BLOCK]]
    assert places(first) == [(2, 0), (9, 2)]


def test_nothing_of_the_last_tenant_stays_in_the_tables(rows: Rows) -> None:
    rows.admit(admitted(1, (1,) * 9, (1, 2, 3), (1, 2, 3)))
    rows.admit(admitted(2, (30,), (8,), (9,)))
    step = rows.step((Chunk(2, 0, 1, True), Chunk(1, 8, 1, True)), {})
    assert step.token_ids.tolist() == [30, 1]
    assert step.groups[0].block_tables.tolist() == [[8, SINK_BLOCK, SINK_BLOCK], [1, 2, 3]]


def test_a_row_may_fill_the_whole_context(rows: Rows) -> None:
    rows.admit(admitted(3, tuple(range(20)), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5)))
    step = rows.step((Chunk(3, 19, 1, True),), {})
    rows.append((3,), torch.tensor([7]))
    assert places(step.groups[0]) == [(5, 3)]
    assert rows.tokens[3].tolist() == [*range(20), 7]
