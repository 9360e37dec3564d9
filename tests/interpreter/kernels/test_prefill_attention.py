"""Prefill attention equals its one-query-at-a-time truth, with NaN in all it may not see, and bitwise in any tiling."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nanoserve.kernels.paged_attention.cases import PrefillCase
from nanoserve.kernels.paged_attention.tuning import (
    choose_block,
    packed_heads,
    queries_per_tile,
)
from nanoserve.kernels.testing import Inputs, compare_around_poison
from nanoserve.kernels.testing_attention import Heads
from nanoserve.kernels.tiles import BlockSizes, make_tiles
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases

TOLERANCE = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SMALL = BlockSizes(16, 16, 4, 2)
"""Many tiles and visits of few tokens, so that small cases have edges of every kind."""
HEADS = Heads(2, 1, 16)

Chunk = tuple[int, int]
"""Position of the first query, number of queries."""


def check(case: PrefillCase, blocks: BlockSizes = SMALL) -> None:
    tolerance = TOLERANCE[case.queries.tokens.dtype]
    agree(compare_around_poison(str(case.heads), case.tiled(blocks), case.exact()), tolerance)


ROWS: dict[str, list[Chunk]] = {
    "one-token": [(0, 1)],
    "whole-visits": [(0, 32)],
    "one-more": [(0, 33)],
    "chunk-from-mid-block": [(21, 19)],
    "one-token-chunks": [(0, 1), (15, 1), (16, 1), (47, 1)],
    "unequal": [(0, 5), (40, 11), (0, 1), (70, 2)],
}


@cases("window", [None, 5], also=[1, 16, 23, 1000])
@cases("rows", ["unequal"], also=[each for each in ROWS if each != "unequal"])
def test_it_equals_the_reference_over_nan(rows: str, window: int | None, inputs: Inputs) -> None:
    check(PrefillCase.of(inputs, HEADS._replace(window=window), ROWS[rows]))


@pytest.mark.parametrize(
    "scoring", [{"soft_cap": 1.5, "multiplier": 0.6}, {"sinks": True}], ids=["cap", "sinks"]
)
@cases("window", [5], also=[None])
def test_soft_caps_and_sinks(window: int | None, scoring: dict[str, Any], inputs: Inputs) -> None:
    case = PrefillCase.of(inputs, Heads(8, 2, 16, window=window, **scoring), ROWS["unequal"])
    check(case)
    assert torch.equal(case.newest(SMALL), case.tiled(SMALL)[case.queries.last])


@cases("heads", [(6, 2)], also=[(1, 1), (3, 1), (4, 1), (8, 1), (16, 2)], ids=str)
def test_heads_share_kv_heads(heads: tuple[int, int], inputs: Inputs) -> None:
    check(PrefillCase.of(inputs, Heads(*heads, 16), [(7, 13), (0, 3)]))


@cases("head_dim", [80], also=[64, 96, 128, 256])
def test_head_sizes_with_their_own_blocks(head_dim: int, inputs: Inputs) -> None:
    check(
        PrefillCase.of(inputs, Heads(4, 2, head_dim), [(60, 9), (0, 70)]),
        choose_block(head_dim, inputs.dtype),
    )


@pytest.mark.parametrize("window", [None, 20])
@cases("block_size", [48], also=[16, 32, 128])
def test_block_sizes(block_size: int, window: int | None, inputs: Inputs) -> None:
    case = PrefillCase.of(inputs, Heads(2, 1, 16, block_size, window), [(50, 20), (0, 4)])
    check(case)
    check(case, BlockSizes(16, 32, 4, 3))


@pytest.mark.parametrize("window", [None, 20])
def test_stale_table_entries_are_not_followed(window: int | None, inputs: Inputs) -> None:
    case = PrefillCase.of(inputs, HEADS._replace(window=window), [(50, 20), (0, 4)])
    stale = case.cache.tables == len(case.cache.keys) - 1
    assert stale.any()
    case.cache.tables[stale] = 2**30
    check(case)
    check(case, BlockSizes(16, 64, 4, 3))


@cases("window", [9], also=[None, 1, 40])
def test_the_tiling_changes_no_bit(window: int | None, inputs: Inputs) -> None:
    case = PrefillCase.of(inputs, HEADS._replace(window=window), [(0, 37), (13, 25)])
    blocks = BlockSizes(64 if inputs.device.type == "cuda" else 16, 16, 4, 2)
    expected = case.tiled(blocks)
    for queries in (1, 5):
        assert torch.equal(case.tiled(blocks, queries=queries).nan_to_num(), expected.nan_to_num())
    rechunked = [
        part
        for row, start, length, token in case.queries.chunks
        for part in ((row, start, 17, token), (row, start + 17, length - 17, token + 17))
    ]
    assert torch.equal(case.tiled(blocks, rechunked).nan_to_num(), expected.nan_to_num())


@cases("window", [20], also=[None, 1])
@cases("head_dim", [64], also=[128])
def test_a_decoding_row_gets_the_same_bits(head_dim: int, window: int | None, inputs: Inputs) -> None:
    rows = [(0, 40), (30, 3), (0, 1), (47, 1), (63, 1), (64, 2)]
    case = PrefillCase.of(inputs, Heads(2, 1, head_dim, window=window), rows)
    blocks = choose_block(head_dim, inputs.dtype)
    assert torch.equal(case.newest(blocks), case.tiled(blocks)[case.queries.last])


def test_a_row_gets_the_same_bits_alone_and_in_a_crowd(inputs: Inputs) -> None:
    case = PrefillCase.of(inputs, HEADS, [(0, 5), (9, 21), (40, 1)])
    together = case.tiled(SMALL)
    for chunk in case.queries.chunks:
        tokens = slice(chunk[3], chunk[3] + chunk[2])
        assert torch.equal(case.tiled(SMALL, [chunk])[tokens], together[tokens])


def test_tiles_cover_every_query_once_and_start_with_the_heaviest() -> None:
    chunks = [(3, 0, 10, 0), (1, 100, 1, 10), (2, 7, 4, 11), (5, 0, 8, 15)]
    tiles = make_tiles(chunks, 4)
    covered = sorted(
        (row, position + i, token + i) for row, token, count, position in tiles for i in range(count)
    )
    assert covered == sorted(
        (row, start + i, token + i) for row, start, length, token in chunks for i in range(length)
    )
    assert all(1 <= count <= 4 for _, _, count, _ in tiles)
    assert tiles[0] == (1, 10, 1, 100)
    assert [tile for tile in tiles if tile[0] == 3] == [(3, 8, 2, 8), (3, 4, 4, 4), (3, 0, 4, 0)]
    assert make_tiles([], 4) == []
    assert len(make_tiles([(row, 5, 64, 64 * row) for row in range(256)], 8)) == 2048


def test_blocks_fit_into_the_shared_memory_of_every_gpu() -> None:
    for head_dim in (64, 80, 128, 256):
        for dtype in (torch.bfloat16, torch.float32):
            padded = 1 << (head_dim - 1).bit_length()
            for capacity in (232_448, 166_912, 101_376):
                blocks = choose_block(head_dim, dtype, capacity)
                entries = blocks.rows + 2 * blocks.stages * blocks.keys
                assert blocks.stages >= 1
                assert entries * padded * dtype.itemsize <= capacity
    with pytest.raises(ValueError, match="heads of 257 elements"):
        choose_block(257, torch.bfloat16)


def test_the_heads_of_a_program_are_a_power_of_two_that_divides_the_group() -> None:
    assert [packed_heads(heads, 1) for heads in (1, 2, 3, 4, 6, 7, 8, 12, 32)] == [1, 2, 1, 4, 2, 1, 8, 4, 16]
    assert packed_heads(32, 8) == 4
    assert queries_per_tile(32, 8, BlockSizes(64, 64, 4, 3)) == 16
