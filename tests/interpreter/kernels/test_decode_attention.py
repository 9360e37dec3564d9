"""Decode attention equals its truth over caches in which all but the older visible tokens is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from nanoserve.kernels.device.launch import SplitScratch
from nanoserve.kernels.heads import Scoring
from nanoserve.kernels.kept import FLOAT8
from nanoserve.kernels.paged import PagedCache
from nanoserve.kernels.paged_attention.cases import DECODING, DecodeCase
from nanoserve.kernels.paged_attention.launch import decode_attention
from nanoserve.kernels.paged_attention.tuning import (
    ANY,
    COPIED_HEADS,
    COPIED_VISITS,
    MAX_SPLITS,
    MAX_TOKENS_PER_SPLIT,
    TILINGS,
    Tiling,
    choose_splits,
    choose_tile,
    copied_sizes,
    copied_splits,
    fits_copies,
    is_copied,
    padded_group,
)
from nanoserve.kernels.testing import Inputs
from nanoserve.kernels.testing_attention import LAYERS, Heads
from tests.interpreter.kernels.agreement import agree
from tests.interpreter.matrix import cases

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALL = Tiling(16, 4, 3, early=False)
"""Tiles of 16 tokens, so that short rows have several."""
EARLY = SMALL._replace(early=True)
EARLY_OR_LATE = pytest.mark.parametrize("tiling", [SMALL, EARLY], ids=["late", "early"])
HEADS = Heads(4, 2, 64)
TWO = Heads(2, 1, 64)


def check(
    inputs: Inputs,
    heads: Heads,
    lengths: Sequence[int],
    splits: int = 1,
    tiling: Tiling = SMALL,
    *,
    padding: int = 0,
    width: int = 0,
) -> None:
    case = DecodeCase.of(inputs, heads, lengths, padding, width)
    agree(case.compare(str(heads), case.run(splits, tiling), case.exact()), TOLERANCE[inputs.dtype])


@EARLY_OR_LATE
@cases("splits", [2], also=[1, 3, 6])
def test_ragged_rows_in_any_number_of_splits(inputs: Inputs, splits: int, tiling: Tiling) -> None:
    check(inputs, TWO, [1, 2, 16, 17, 33, 70], splits, tiling)


@EARLY_OR_LATE
@cases("splits", [4], also=[1])
@cases("window", [17], also=[1, 2, 18, 30, 100])
def test_tokens_that_left_the_window_are_not_read(
    inputs: Inputs, window: int, splits: int, tiling: Tiling
) -> None:
    check(inputs, TWO._replace(window=window), [1, 16, 31, 48], splits, tiling)


SCORING = pytest.mark.parametrize(
    "scoring", [{"soft_cap": 1.5, "multiplier": 0.6}, {"sinks": True}], ids=["cap", "sinks"]
)


@EARLY_OR_LATE
@SCORING
@cases("splits", [3], also=[1])
def test_soft_caps_and_sinks(inputs: Inputs, splits: int, scoring: dict[str, Any], tiling: Tiling) -> None:
    check(inputs, Heads(6, 2, 64, window=30, **scoring), [1, 16, 48], splits, tiling)


@cases("heads", [(3, 1)], also=[(1, 1), (8, 2), (5, 1), (14, 2), (18, 1)])
def test_any_number_of_query_heads_per_kv_head(inputs: Inputs, heads: tuple[int, int]) -> None:
    check(inputs, Heads(*heads, 64), [20, 37], 2, EARLY)
    check(inputs, Heads(*heads, 64), [20, 37])


@EARLY_OR_LATE
@pytest.mark.parametrize("norm", [False, True])
@cases("head_dim", [80], also=[64, 96, 128, 256])
def test_head_dims(inputs: Inputs, head_dim: int, norm: bool, tiling: Tiling) -> None:
    heads = Heads(3, 1, head_dim, norm=norm)
    own = choose_tile(2, head_dim, inputs.dtype, 2)
    check(inputs, heads, [1, 35], 2, own._replace(early=tiling.early))
    check(inputs, heads, [1, 35], tiling=tiling)


@cases(("batch", "splits"), [(8, 2)], also=[(1, 2), (1, 32), (32, 2), (64, 1), (256, 1)])
@cases("head_dim", [64], also=[8, 16, 32, 128])
def test_the_tilings_of_serving(inputs: Inputs, head_dim: int, batch: int, splits: int) -> None:
    tiling = choose_tile(batch, head_dim, inputs.dtype, splits, kv_heads=2)
    check(inputs, Heads(4, 2, head_dim), [3, 150, 1, 65], splits, tiling)


@cases(
    ("batch", "splits", "width"),
    [(8, 2, 0), (64, 1, 2)],
    also=[(1, 4, 0), (1, 32, 0), (32, 2, 0), (256, 1, 0), (8, 3, 4), (64, 1, 8)],
)
@cases("head_dim", [64], also=[16, 80, 96, 128, 256])
def test_keys_and_values_in_8_bits(
    inputs: Inputs, head_dim: int, batch: int, splits: int, width: int
) -> None:
    heads = Heads(4, 2, head_dim, norm=width > 0, narrow=True)
    tiling = choose_tile(batch, head_dim, FLOAT8, splits, padded=padded_group(2, max(width, 1)))
    check(inputs, heads, [3, 150, 1, 65], splits, tiling, padding=2, width=width)


@EARLY_OR_LATE
@SCORING
def test_soft_caps_and_sinks_over_8_bits(inputs: Inputs, scoring: dict[str, Any], tiling: Tiling) -> None:
    check(inputs, Heads(6, 2, 64, window=30, narrow=True, **scoring), [1, 16, 48], 2, tiling)


@cases("block_size", [48], also=[16, 32, 64, 128])
def test_block_sizes(inputs: Inputs, block_size: int) -> None:
    heads, lengths = Heads(4, 2, 64, block_size), [block_size, block_size + 1, 2 * block_size + 3]
    check(inputs, heads, lengths, 2, Tiling(64, 4, 3, early=False))
    check(inputs, heads, lengths, tiling=EARLY)


@pytest.mark.parametrize("splits", [1, 4])
def test_padding_places_share_a_row(inputs: Inputs, splits: int) -> None:
    check(inputs, HEADS._replace(norm=True), [40, 3], splits, EARLY if splits > 1 else SMALL, padding=3)


@EARLY_OR_LATE
@cases(
    ("width", "splits", "heads"),
    [(4, 3, TWO), (1, 2, TWO), (2, 1, Heads(3, 1, 16)), (8, 2, Heads(5, 1, 16, norm=True))],
    also=[(2, 3, TWO), (4, 1, Heads(1, 1, 80)), (8, 1, HEADS), (8, 5, Heads(16, 1, 64))],
)
def test_drafted_tokens_see_those_before_them(
    inputs: Inputs, width: int, splits: int, heads: Heads, tiling: Tiling
) -> None:
    check(inputs, heads, [30, 1, 16, 47], splits, tiling, width=width, padding=2)


@EARLY_OR_LATE
@cases(("window", "splits"), [(17, 2), (2, 1)], also=[(1, 2), (17, 1), (100, 2), (5, 3)])
def test_each_drafted_token_has_its_own_window(
    inputs: Inputs, window: int, splits: int, tiling: Tiling
) -> None:
    check(inputs, TWO._replace(window=window), [31, 1, 16], splits, tiling, width=4)


@EARLY_OR_LATE
@SCORING
def test_soft_caps_and_sinks_of_drafted_tokens(
    inputs: Inputs, scoring: dict[str, Any], tiling: Tiling
) -> None:
    check(inputs, Heads(6, 2, 64, window=30, **scoring), [1, 16, 48], 2, tiling, width=2)


def test_few_and_many_rows_by_their_own_tilings(inputs: Inputs) -> None:
    for heads, lengths in ((HEADS, [150]), (TWO, [3, 40, 18, 70, 1, 2, 33, 34, 35])):
        check(inputs, heads, lengths, tiling=choose_tile(len(lengths), heads.head_dim, inputs.dtype))


def test_every_split_of_a_long_row_counts(inputs: Inputs) -> None:
    check(inputs, TWO._replace(block_size=64), [530], 32, EARLY)
    check(inputs, Heads(1, 1, 256, 64), [100], 64)


@EARLY_OR_LATE
@cases("splits", [3], also=[1])
def test_a_row_is_the_same_wherever_it_sits(inputs: Inputs, splits: int, tiling: Tiling) -> None:
    case = DecodeCase.of(inputs, HEADS, [40, 70, 17, 9])
    crowd, *_ = case.run(splits, tiling)
    for place in range(len(crowd)):
        rows = case.step["batch_rows"][[place]]
        alone = change(case, batch_rows=rows, qkv=case.qkv[[place]])
        assert torch.equal(alone.run(splits, tiling)[0][0], crowd[place])


def change(case: DecodeCase, qkv: Tensor | None = None, **step: Any) -> DecodeCase:
    return case._replace(qkv=case.qkv if qkv is None else qkv, step={**case.step, **step})


def test_large_scores_do_not_overflow(inputs: Inputs) -> None:
    out, *_ = change(DecodeCase.of(inputs, HEADS, [50, 20]), scoring=Scoring(20.0)).run(3, SMALL)
    assert out.isfinite().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="fills gigabytes that only a GPU has to spare")
@EARLY_OR_LATE
def test_pools_of_more_than_2_to_the_31_elements(device: torch.device, tiling: Tiling) -> None:
    case = DecodeCase.of(Inputs(device, torch.float16), HEADS, [50, 20])
    offset = 2**31 // case.cache.block_stride + 1
    shape = (offset + len(case.cache.keys), LAYERS, 2, *case.cache.keys.shape[1:])
    keys, values = case.cache.keys.new_empty(shape)[:, -1].unbind(1)
    keys[offset:], values[offset:] = case.cache[:2]
    far = case._replace(cache=PagedCache(keys, values, case.cache.tables + offset))
    both = case.run(2, tiling), far.run(2, tiling)
    for near, result in zip(*both, strict=True):
        assert torch.equal(near.nan_to_num(7), result[-len(near) :].nan_to_num(7))


def launch(inputs: Inputs, splits: int, scratch: SplitScratch) -> Tensor:
    case, out = DecodeCase.of(inputs, HEADS, [50]), inputs.poisoned(1, 4 * 64)
    how: dict[str, Any] = {"splits": splits, "scratch": scratch, "tiling": SMALL}
    decode_attention(case.qkv, case.cache, case.transform, out, **case.step, **how)
    return out


def test_a_scratch_serves_any_batch_and_splits_of_its_product(inputs: Inputs) -> None:
    assert not launch(inputs, 8, SplitScratch.create(8, 4, 64, 1, inputs.device)).isnan().any()


def test_a_scratch_that_is_too_small_is_refused(inputs: Inputs) -> None:
    with pytest.raises(ValueError, match="3 splits exceed"):
        launch(inputs, 3, SplitScratch.create(1, 4, 64, 2, inputs.device))


def test_splits_fill_the_machine_and_bound_the_longest_walk() -> None:
    for batch in (1, 2, 3, 7, 8, 9, 16, 33, 64, 256, 1024):
        for kv_heads in (1, 2, 5, 8):
            for context in (1, 100, 1000, 4096, 4097, 32768, 131072):
                splits = choose_splits(batch, kv_heads, context, 132)
                assert splits.bit_count() == 1
                assert splits <= MAX_SPLITS
                assert context / splits <= MAX_TOKENS_PER_SPLIT
                assert splits == 1 or context / splits > 32, "splits without a tile"
    batches = (1, 8, 16, 32, 64, 256)
    assert [choose_splits(batch, 8, 1024, 132, size=128) for batch in batches] == [16, 8, 8, 4, 1, 1]
    assert [choose_splits(batch, 8, 1024, 132) for batch in batches] == [16, 4, 4, 1, 1, 1]
    assert choose_splits(1, 8, 4096, 132) == 32
    assert choose_splits(1, 8, 32768, 132) == 64
    assert [choose_splits(batch, 4, 640, 132, 32, size=512) for batch in (1, 8, 64)] == [32, 8, 1]


def test_one_row_with_heads_of_128_has_a_few_large_programs() -> None:
    contexts = (64, 500, 1024, 1025, 2048, 2049, 8192, 8193)
    assert [choose_splits(1, 8, each, 132) for each in contexts] == [1, 8, 16, 32, 32, 32, 32, 64]
    assert [choose_splits(1, 2, each, 132) for each in contexts] == [1, 8, 16, 16, 16, 32, 32, 128]
    narrow = [choose_splits(1, 8, each, 132, 32) for each in contexts]
    assert narrow == [1, 8, 16, 32, 32, 64, 64, 64]
    tilings = [choose_tile(1, 128, torch.bfloat16, 16, kv_heads=heads) for heads in (2, 4, 8)]
    assert [each.warps for each in tilings] == [8, 8, 4]
    assert choose_tile(1, 128, torch.bfloat16, 32, kv_heads=2) == tilings[2] == Tiling(64, 4, 3, early=True)
    assert choose_tile(1, 128, torch.bfloat16, 64) == choose_tile(1, 128, torch.bfloat16, 64, kv_heads=2)
    for heads in (1, 2, 4, 8, 16, 32):  # what is made for the longest row is enough for shorter ones
        splits = [choose_splits(1, heads, each, 132) for each in range(1, 20_000, 61)]
        assert splits == sorted(splits)


def test_programs_for_which_the_copy_engine_fetches_fill_the_machine_and_share_long_rows() -> None:
    assert [copied_splits(batch, 8, 1000, 132, 128) for batch in (2, 8, 16, 32, 64, 256)] == [
        8,
        8,
        4,
        2,
        1,
        1,
    ]
    assert [copied_splits(64, 8, context, 132, 128) for context in (2048, 2049, 4096, 8192)] == [1, 2, 2, 4]
    assert copied_splits(1, 1, 10**6, 132, 64) == MAX_SPLITS
    for batch in (2, 9, 64, 1024):  # what is made for the longest row is enough for shorter ones
        splits = [copied_splits(batch, 8, context, 132, 64) or 0 for context in range(1, 20_000, 61)]
        assert splits == sorted(splits)


def test_a_row_alone_has_its_keys_fetched_where_its_heads_are_narrow_and_it_is_long() -> None:
    for narrow, longest in ((False, 64), (True, 128)):
        how = {"narrow": narrow}
        chosen = [copied_splits(1, 8, context, 132, 64, **how) for context in (1000, 8192, 8193, 32_000)]
        assert chosen == [None, None, longest, longest]
        assert copied_splits(1, 8, 32_000, 132, 128, **how) is None
        assert [is_copied(1, 64, splits, **how) for splits in (longest // 2, longest)] == [False, True]
        assert is_copied(2, 128, 1, **how)
    assert [copied_splits(8, 8, 4096, 132, size, narrow=True) for size in (64, 128)] == [16, 8]


def test_what_a_start_checks_has_rows_whose_keys_are_fetched_to_where_others_were() -> None:
    visits = [(max(DECODING) - 1) // copied_sizes(1, head_dim).keys for head_dim in COPIED_HEADS]
    assert min(visits) > 2 * COPIED_VISITS, "each place is filled three times"


def test_programs_for_which_the_copy_engine_fetches_have_a_column_for_each_query() -> None:
    assert [copied_sizes(queries, 128) for queries in (1, 8, 9)] == [(8, 1, 32), (8, 1, 32), (16, 2, 32)]
    assert [fits_copies(128, queries) for queries in (9, 16, 17)] == [True, True, False]
    assert [fits_copies(head_dim, 16) for head_dim in (64, 80, 256)] == [True, False, False]
    assert [copied_sizes(4, head_dim).keys for head_dim in COPIED_HEADS] == [64, 32, 16]


def test_wide_groups_have_a_warp_for_each_16_rows() -> None:
    assert [padded_group(4, width) for width in (1, 2, 4, 8)] == [16, 16, 16, 32]
    assert padded_group(5, 4) == 32
    assert choose_tile(64, 64, torch.bfloat16, padded=64).warps == 4
    assert choose_tile(64, 64, torch.bfloat16, padded=16) == choose_tile(64, 64, torch.bfloat16)


def test_every_head_dim_and_dtype_has_tilings() -> None:
    for head_dim in (16, 64, 80, 96, 128, 256):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            few, many = choose_tile(1, head_dim, dtype), choose_tile(64, head_dim, dtype)
            assert few.early == (head_dim > 16)
            assert not many.early
            assert min(few.tokens, many.tokens) >= 16


def test_the_tilings_are_sorted_tables_that_end_with_everything() -> None:
    keys = [(most_bytes, most_rows, -splits) for most_bytes, most_rows, splits, _ in TILINGS]
    assert keys == sorted(set(keys))
    assert TILINGS[-1][:3] == (4 * 256, ANY, 1)
    chosen = [
        choose_tile(rows, 64, dtype, splits)
        for dtype in (torch.bfloat16, torch.float8_e4m3fn)
        for rows, splits in ((1, 1), (1, 32), (3, 1))
    ]
    assert [(tile.tokens, tile.warps) for tile in chosen] == 2 * [(64, 4), (128, 4), (32, 1)]
