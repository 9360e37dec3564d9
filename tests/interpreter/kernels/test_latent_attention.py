"""Latent attention equals its one-query-at-a-time truth, with NaN in all it may not see, and bitwise in any tiling."""

from __future__ import annotations

import pytest
import torch

from nanoserve.kernels.device.launch import SplitScratch
from nanoserve.kernels.latent_attention.cases import CHUNKS, Case
from nanoserve.kernels.latent_attention.launch import latent_decode
from nanoserve.kernels.latent_attention.tuning import (
    HEADS,
    MAX_SPLITS,
    MAX_TOKENS_PER_SPLIT,
    choose_splits,
    decode_block,
    packed_heads,
    padded_width,
    prefill_block,
    queries_per_tile,
)
from nanoserve.kernels.testing import Comparison, Inputs, compare_around_poison
from nanoserve.kernels.testing_attention import LatentHeads
from nanoserve.kernels.tiles import BlockSizes
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
ODD = LatentHeads(num_heads=3, latent_dim=20, rope_dim=6, nope_dim=10, value_dim=14)
EVEN = ODD._replace(num_heads=4, latent_dim=32, rope_dim=16)
DEEPSEEK = LatentHeads(16, 512, 64, 128, 128, block_size=32)
SMALL = BlockSizes(16, 16, 4, 2)
"""Many tiles and visits of few tokens, so that small cases have edges of every kind."""
ROWS = {
    "one-token": [(0, 1)],
    "whole-visits": [(0, 32)],
    "one-more": [(0, 33)],
    "chunk-from-mid-block": [(21, 19)],
    "one-token-chunks": [(0, 1), (15, 1), (16, 1), (47, 1)],
    "unequal": [(0, 5), (40, 11), (0, 1), (70, 2)],
}


def check(case: Case, blocks: BlockSizes | None = SMALL, splits: tuple[int, ...] = (1, 3)) -> None:
    wanted, tolerance = case.exact(), TOLERANCE[case.queries.tokens.dtype]
    agree(compare_around_poison("tiles", case.tiled(blocks), wanted), tolerance)
    for each in splits:
        agree(
            [Comparison(f"{each} splits", case.decoded(each, blocks), wanted[case.queries.last])], tolerance
        )


@cases("rows", ["unequal"], also=[each for each in ROWS if each != "unequal"])
@pytest.mark.parametrize("sizes", [ODD, EVEN], ids=["odd", "even"])
def test_it_equals_the_reference_over_nan(sizes: LatentHeads, rows: str, inputs: Inputs) -> None:
    check(Case.of(inputs, sizes, ROWS[rows]))


@cases("num_heads", [6, 18], also=[1, 2, 5, 16, 64])
def test_any_number_of_heads(num_heads: int, inputs: Inputs) -> None:
    check(Case.of(inputs, ODD._replace(num_heads=num_heads), [(7, 13), (0, 3)]))


@cases("block_size", [48], also=[16, 32, 64, 128])
def test_block_sizes(block_size: int, inputs: Inputs) -> None:
    case = Case.of(inputs, ODD._replace(block_size=block_size), [(50, 20), (0, 4)])
    check(case)
    check(case, BlockSizes(16, 32, 4, 3))


@cases("splits", [2], also=[1, 4, 16])
def test_the_sizes_of_deepseek(splits: int, inputs: Inputs) -> None:
    if inputs.device.type == "cuda" and inputs.dtype == torch.float32:
        pytest.skip("sums over 512 elements in float32 compile for minutes")
    rows = CHUNKS if inputs.device.type == "cuda" else [(30, 5), (0, 1)]
    check(Case.of(inputs, DEEPSEEK, rows), None, (splits,))


def test_every_split_of_a_long_row_counts(inputs: Inputs) -> None:
    check(Case.of(inputs, ODD._replace(block_size=64), [(529, 1)]), splits=(32,))


def test_stale_table_entries_are_not_followed(inputs: Inputs) -> None:
    case = Case.of(inputs, ODD, [(50, 20), (0, 4)])
    stale = case.cache.tables == len(case.cache.entries) - 1
    assert stale.any()
    case.cache.tables[stale] = 2**30
    check(case)
    check(case, BlockSizes(16, 64, 4, 3))


def test_the_tiling_changes_no_bit(inputs: Inputs) -> None:
    case = Case.of(inputs, ODD, [(0, 23), (13, 19)])
    blocks = BlockSizes(64 if inputs.device.type == "cuda" else 16, 16, 4, 2)
    expected = case.tiled(blocks).nan_to_num()
    for queries in (1, 5):
        assert torch.equal(case.tiled(blocks, queries=queries).nan_to_num(), expected)
    rechunked = [
        part
        for row, start, length, token in case.queries.chunks
        for part in ((row, start, 9, token), (row, start + 9, length - 9, token + 9))
    ]
    assert torch.equal(case.tiled(blocks, rechunked).nan_to_num(), expected)


def test_a_decoding_row_gets_the_bits_of_a_tile(inputs: Inputs) -> None:
    case = Case.of(inputs, ODD, [(0, 40), (30, 3), (0, 1), (47, 1), (63, 1), (64, 2)])
    blocks = prefill_block(padded_width(ODD.latent_dim, ODD.rope_dim), inputs.dtype)
    assert torch.equal(case.newest(blocks), case.tiled(blocks)[case.queries.last])


@cases("splits", [3], also=[1])
def test_a_row_is_the_same_alone_and_in_a_crowd(inputs: Inputs, splits: int) -> None:
    case = Case.of(inputs, ODD, [(39, 1), (69, 1), (16, 1), (8, 1)])
    crowd, tiled = case.decoded(splits, SMALL), case.tiled(SMALL)
    for place, chunk in enumerate(case.queries.chunks):
        alone = case.decoded(splits, SMALL, places=slice(place, place + 1))
        assert torch.equal(alone[0], crowd[place])
        assert torch.equal(case.tiled(SMALL, [chunk])[chunk[3]], tiled[chunk[3]])


def test_large_scores_do_not_overflow(inputs: Inputs) -> None:
    case = Case.of(inputs, ODD, [(49, 1), (19, 1)])
    assert (
        case._replace(queries=case.queries._replace(tokens=case.queries.tokens * 100))
        .decoded(3, SMALL)
        .isfinite()
        .all()
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="fills gigabytes that only a GPU has to spare")
def test_pools_of_more_than_2_to_the_31_elements(device: torch.device) -> None:
    case = Case.of(Inputs(device, torch.float16), DEEPSEEK, [(45, 5), (0, 20)])
    offset = 2**31 // case.cache.block_stride + 1
    shape = offset + len(case.cache.entries), case.cache.block_stride
    pool = case.cache.entries.new_empty(shape)
    entries = pool[:, -case.cache.entries[0].numel() :].view(-1, *case.cache.entries.shape[1:])
    entries[offset:] = case.cache.entries
    far = case._replace(cache=case.cache._replace(entries=entries, tables=case.cache.tables + offset))
    assert torch.equal(case.decoded(2), far.decoded(2))
    assert torch.equal(case.tiled().nan_to_num(), far.tiled().nan_to_num())


def test_a_scratch_that_is_too_small_is_refused(inputs: Inputs) -> None:
    case = Case.of(inputs, ODD, [(9, 1)])
    out = inputs.poisoned(1, ODD.num_heads, ODD.latent_dim)
    with pytest.raises(ValueError, match="3 splits exceed"):
        latent_decode(
            case.queries.tokens[case.queries.last],
            case.cache,
            out,
            batch_rows=inputs.these([0]),
            lengths=inputs.these([10, 1]),
            scale=1.0,
            splits=3,
            scratch=SplitScratch.create(2, ODD.num_heads, ODD.latent_dim, 1, inputs.device),
        )


def test_splits_fill_the_machine_and_bound_the_longest_walk() -> None:
    for batch in (1, 2, 7, 8, 33, 64, 256, 1024):
        for heads in (1, 16, 64, 128):
            for context in (1, 100, 1000, 4096, 4097, 32768, 131072):
                splits = choose_splits(batch, heads, context, 132)
                assert splits.bit_count() == 1
                assert splits <= MAX_SPLITS
                assert context / splits <= MAX_TOKENS_PER_SPLIT
                assert splits == 1 or context / splits > 16, "splits without a tile"
    assert [choose_splits(batch, 16, 1024, 132) for batch in (1, 8, 64, 256)] == [16, 16, 4, 1]
    assert choose_splits(8, 128, 1024, 132) == 4


def test_blocks_fit_into_the_shared_memory_of_every_gpu() -> None:
    for width in (padded_width(20, 6), padded_width(256, 32), padded_width(512, 64)):
        for dtype in (torch.bfloat16, torch.float32):
            entry = width * dtype.itemsize
            for capacity in (232_448, 166_912, 101_376):
                for blocks in (decode_block(width, dtype, capacity), prefill_block(width, dtype, capacity)):
                    assert (blocks.rows + blocks.stages * blocks.keys) * entry <= capacity, blocks
    assert decode_block(576, torch.bfloat16) == BlockSizes(HEADS, 32, 4, 3)
    assert prefill_block(576, torch.bfloat16) == BlockSizes(64, 32, 8, 2)


def test_the_heads_of_a_program_are_a_power_of_two_that_divides_their_number() -> None:
    assert [packed_heads(heads, 64) for heads in (1, 3, 6, 16, 128)] == [1, 1, 2, 16, 64]
    assert [queries_per_tile(heads, 64) for heads in (1, 16, 64, 128)] == [64, 4, 1, 1]
