"""Prefill attention equals its one-query-at-a-time truth, with NaN in all it may not see, and bitwise in any tiling."""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs
import pytest
import torch
from torch import Tensor

from nanoserve.kernels.prefill_attention.launch import prefill_attention, prefill_attention_newest
from nanoserve.kernels.prefill_attention.reference import prefill_attention as reference
from nanoserve.kernels.prefill_attention.tuning import (
    Blocks,
    choose_block,
    make_tiles,
    packed_heads,
    queries_per_tile,
)

TOLERANCE = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SMALL = Blocks(16, 16, 4, 2)
"""Many tiles and visits of few tokens, so that small cases have edges of every kind."""

Chunk = tuple[int, int]
"""Position of the first query, number of queries."""


@attrs.frozen(kw_only=True, eq=False)
class Case:
    """Chunks over pools in which every slot that no query sees is NaN, unused table entries pointing to such."""

    query: Tensor
    keys: Tensor
    values: Tensor
    block_tables: Tensor
    chunks: list[tuple[int, int, int, int]]
    window: int | None

    @property
    def heads(self) -> tuple[int, int]:
        return self.query.shape[1] // self.keys.shape[3], self.keys.shape[1]

    @property
    def scale(self) -> float:
        return float(self.keys.shape[3] ** -0.5)

    def exact(self) -> Tensor:
        return reference(
            self.query,
            self.keys,
            self.values,
            chunks=self.chunks,
            block_tables=self.block_tables,
            scale=self.scale,
            window=self.window,
        )

    def tiled(
        self, blocks: Blocks = SMALL, chunks: list[tuple[int, int, int, int]] | None = None, queries: int = 0
    ) -> Tensor:
        """All chunks, or others instead, in tiles of at most `queries`; NaN where no tile writes."""
        queries = queries or queries_per_tile(*self.heads, blocks)
        tiles = make_tiles(self.chunks if chunks is None else chunks, queries)
        out = torch.full_like(self.query, torch.nan)
        prefill_attention(
            self.query,
            self.keys,
            self.values,
            out,
            tiles=torch.tensor(tiles, dtype=torch.int32, device=out.device),
            block_tables=self.block_tables,
            scale=self.scale,
            window=self.window,
            blocks=blocks,
        )
        return out

    def newest(self, blocks: Blocks = SMALL) -> Tensor:
        """The last query of each chunk, as a decoding row."""
        rows = [row for row, _, _, _ in self.chunks]
        lengths = torch.full((self.block_tables.shape[0],), 10**9, dtype=torch.int32)
        for row, start, length, _ in self.chunks:
            lengths[row] = start + length
        query = self.query[[token + length - 1 for _, _, length, token in self.chunks]]
        out = torch.full_like(query, torch.nan)
        prefill_attention_newest(
            query,
            self.keys,
            self.values,
            out,
            batch_rows=torch.tensor(rows, dtype=torch.int32, device=out.device),
            lengths=lengths.to(out.device),
            block_tables=self.block_tables,
            scale=self.scale,
            window=self.window,
            blocks=blocks,
        )
        return out

    def check(self, blocks: Blocks = SMALL) -> None:
        tolerance = TOLERANCE[self.query.dtype]
        torch.testing.assert_close(
            self.tiled(blocks).float(), self.exact(), rtol=tolerance, atol=tolerance, equal_nan=True
        )


def make_case(
    rows: Sequence[Chunk],
    *,
    device: torch.device,
    dtype: torch.dtype,
    heads: tuple[int, int] = (2, 1),
    head_dim: int = 16,
    block_size: int = 16,
    window: int | None = None,
) -> Case:
    generator = torch.Generator().manual_seed(head_dim + sum(length for _, length in rows))
    num_heads, num_kv_heads = heads
    width = max(-(-(start + length) // block_size) for start, length in rows)
    capacity = len(rows) * width
    keys = torch.full((capacity + 1, num_kv_heads, block_size, head_dim), torch.nan)
    values = keys.clone()
    free = iter((torch.randperm(capacity, generator=generator) + 1).tolist())
    tables = torch.zeros(len(rows) + 1, width, dtype=torch.int32)
    chunks, token = [], 1
    for index, (start, length) in enumerate(rows):
        row = len(rows) - index
        low = 0 if window is None else max(0, start + 1 - window)
        for position in range(low, start + length):
            if position == low or position % block_size == 0:
                tables[row, position // block_size] = next(free)
            slot = (int(tables[row, position // block_size]), slice(None), position % block_size)
            keys[slot] = torch.randn(num_kv_heads, head_dim, generator=generator)
            values[slot] = torch.randn(num_kv_heads, head_dim, generator=generator)
        chunks.append((row, start, length, token))
        token += length + 1  # one token of the step between two chunks belongs to neither
    query = torch.full((token, num_heads * head_dim), torch.nan)
    for _, _, length, first in chunks:
        query[first : first + length] = torch.randn(length, num_heads * head_dim, generator=generator)
    return Case(
        query=query.to(device, dtype),
        keys=keys.to(device, dtype),
        values=values.to(device, dtype),
        block_tables=tables.to(device),
        chunks=chunks,
        window=window,
    )


ROWS: dict[str, list[Chunk]] = {
    "one-token": [(0, 1)],
    "whole-visits": [(0, 32)],
    "one-more": [(0, 33)],
    "chunk-from-mid-block": [(21, 19)],
    "one-token-chunks": [(0, 1), (15, 1), (16, 1), (47, 1)],
    "unequal": [(0, 5), (40, 11), (0, 1), (70, 2)],
}


@pytest.mark.parametrize("window", [None, 1, 5, 16, 23, 1000])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
def test_it_equals_the_reference_over_nan(
    rows: list[Chunk], window: int | None, device: torch.device, dtype: torch.dtype
) -> None:
    make_case(rows, window=window, device=device, dtype=dtype).check()


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (4, 1), (8, 1), (6, 2), (16, 2)], ids=str)
def test_heads_share_kv_heads(heads: tuple[int, int], device: torch.device, dtype: torch.dtype) -> None:
    make_case([(7, 13), (0, 3)], heads=heads, device=device, dtype=dtype).check()


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_head_sizes_with_their_own_blocks(head_dim: int, device: torch.device, dtype: torch.dtype) -> None:
    case = make_case([(60, 9), (0, 70)], head_dim=head_dim, heads=(4, 2), device=device, dtype=dtype)
    case.check(choose_block(head_dim, dtype))


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("block_size", [16, 32, 48, 128])
def test_block_sizes(block_size: int, window: int | None, device: torch.device, dtype: torch.dtype) -> None:
    case = make_case([(50, 20), (0, 4)], block_size=block_size, window=window, device=device, dtype=dtype)
    case.check()
    case.check(Blocks(16, 32, 4, 3))


@pytest.mark.parametrize("window", [None, 20])
def test_stale_table_entries_are_not_followed(
    window: int | None, device: torch.device, dtype: torch.dtype
) -> None:
    case = make_case([(50, 20), (0, 4)], window=window, device=device, dtype=dtype)
    case.block_tables[case.block_tables == 0] = 2**30
    case.check()
    case.check(Blocks(16, 64, 4, 3))


@pytest.mark.parametrize("window", [None, 1, 9, 40])
def test_the_tiling_changes_no_bit(window: int | None, device: torch.device, dtype: torch.dtype) -> None:
    case = make_case([(0, 37), (13, 25)], window=window, heads=(2, 1), device=device, dtype=dtype)
    blocks = Blocks(64 if device.type == "cuda" else 16, 16, 4, 2)
    expected = case.tiled(blocks)
    for queries in (1, 5):
        assert torch.equal(case.tiled(blocks, queries=queries).nan_to_num(), expected.nan_to_num())
    rechunked = [
        part
        for row, start, length, token in case.chunks
        for part in ((row, start, 17, token), (row, start + 17, length - 17, token + 17))
    ]
    assert torch.equal(case.tiled(blocks, rechunked).nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_decoding_row_gets_the_same_bits(
    head_dim: int, window: int | None, device: torch.device, dtype: torch.dtype
) -> None:
    rows = [(0, 40), (30, 3), (0, 1), (47, 1), (63, 1), (64, 2)]
    case = make_case(rows, window=window, head_dim=head_dim, device=device, dtype=dtype)
    blocks = choose_block(head_dim, dtype)
    last = [token + length - 1 for _, _, length, token in case.chunks]
    assert torch.equal(case.newest(blocks), case.tiled(blocks)[last])


def test_a_row_gets_the_same_bits_alone_and_in_a_crowd(device: torch.device, dtype: torch.dtype) -> None:
    case = make_case([(0, 5), (9, 21), (40, 1)], device=device, dtype=dtype)
    together = case.tiled()
    for chunk in case.chunks:
        tokens = slice(chunk[3], chunk[3] + chunk[2])
        assert torch.equal(case.tiled(chunks=[chunk])[tokens], together[tokens])


def test_a_poked_future_token_changes_nothing(device: torch.device, dtype: torch.dtype) -> None:
    case = make_case([(8, 12)], device=device, dtype=dtype)
    before = case.tiled()
    slot = int(case.block_tables[1, 1]), slice(None), 19 - 16
    case.keys[slot] = 50.0
    case.values[slot] = 50.0
    after = case.tiled()
    assert torch.equal(before[1:12], after[1:12])
    assert not torch.equal(before[12], after[12])


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


def test_tiles_of_a_large_step_are_made_in_no_time() -> None:
    chunks = [(row, 5, 64, 64 * row) for row in range(256)]
    took = []
    for _ in range(5):
        start = time.perf_counter()
        assert len(make_tiles(chunks, 8)) == 2048
        took.append(time.perf_counter() - start)
    assert min(took) < 0.01


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
    assert queries_per_tile(32, 8, Blocks(64, 64, 4, 3)) == 16
