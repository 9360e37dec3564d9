"""Decode attention equals its truth over caches in which all but the older visible tokens is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from nanoserve.kernels.decode_attention.launch import SplitScratch, decode_attention
from nanoserve.kernels.decode_attention.reference import decode_attention as reference
from nanoserve.kernels.decode_attention.tuning import (
    ANY,
    MAX_SPLITS,
    MAX_TOKENS_PER_SPLIT,
    TILINGS,
    Tiling,
    choose_splits,
    choose_tile,
)

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALL = Tiling(16, 4, 3, early=False)
"""Tiles of 16 tokens, so that short rows have several."""


@attrs.frozen(kw_only=True, eq=False)
class Case:
    """Rows of given lengths, each decoding its newest token; the last row is the sink that padding places share."""

    qkv: Tensor
    keys: Tensor
    values: Tensor
    batch_rows: Tensor
    lengths: Tensor
    block_tables: Tensor
    rotations: Tensor
    scale: float
    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float
    window: int | None

    def exact(self) -> tuple[Tensor, Tensor, Tensor]:
        return reference(**attrs.asdict(self))

    def fast(
        self, splits: int = 1, tiling: Tiling | None = SMALL, early: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The output and both caches after the call."""
        given = attrs.asdict(self)
        keys, values, qkv = given.pop("keys").clone(), given.pop("values").clone(), given.pop("qkv")
        _, kv_heads, _, head_dim = keys.shape
        heads = qkv.shape[1] // head_dim - 2 * kv_heads
        out = torch.full((len(qkv), heads * head_dim), torch.nan, dtype=qkv.dtype, device=qkv.device)
        scratch = SplitScratch.create(len(qkv), heads, head_dim, splits, qkv.device)
        for tensor in scratch:
            tensor.fill_(torch.nan)
        decode_attention(
            qkv, keys, values, out, **given, splits=splits, scratch=scratch, tiling=tiling, early=early
        )
        return out, keys, values

    def check(self, splits: int = 1, tiling: Tiling | None = SMALL, early: bool = False) -> None:
        out, keys, values = self.fast(splits, tiling, early)
        exact_out, exact_keys, exact_values = self.exact()
        tolerance = TOLERANCE[self.qkv.dtype]
        torch.testing.assert_close(out.float(), exact_out, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(keys, exact_keys, rtol=tolerance, atol=tolerance, equal_nan=True)
        assert torch.equal(values.nan_to_num(7), exact_values.nan_to_num(7))
        old = ~self.keys.isnan()
        assert torch.equal(keys[old], self.keys[old]), "an older key has changed"


def make_case(
    lengths: Sequence[int],
    device: torch.device,
    dtype: torch.dtype,
    *,
    padding: int = 0,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    block_size: int = 16,
    window: int | None = None,
    norm: bool = False,
) -> Case:
    """Places in another order than their rows, tables scrambled over the pool, unused entries to a block of NaN."""
    generator = torch.Generator().manual_seed(sum(lengths) + head_dim + heads[0])

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    num_heads, kv_heads = heads
    rows, longest = len(lengths), max(lengths)
    width = -(-longest // block_size) + 1
    pool = 2 + rows * width
    poison = pool - 1
    keys, values = (torch.full((pool, kv_heads, block_size, head_dim), torch.nan, dtype=dtype) for _ in "kv")
    unused = (1 + torch.randperm(pool - 2, generator=generator)).tolist()
    tables = torch.full((rows + 1, width), poison, dtype=torch.int32)
    tables[rows] = 0
    for row, length in enumerate(lengths):
        first = 0 if window is None else max(0, length - window)
        for position in range(first, length):
            column, at = divmod(position, block_size)
            if tables[row, column] == poison:
                tables[row, column] = unused.pop()
            if position < length - 1:
                keys[tables[row, column], :, at] = random(kv_heads, head_dim)
                values[tables[row, column], :, at] = random(kv_heads, head_dim)
    angles = torch.randn(longest, head_dim // 2, generator=generator)
    order = torch.randperm(rows, generator=generator).tolist() + [rows] * padding
    qkv = random(rows, (num_heads + 2 * kv_heads) * head_dim)
    if padding:  # all alike, as they race for one slot
        qkv = torch.cat((qkv, random(1, qkv.shape[1]).expand(padding, -1)))
    case = Case(
        qkv=qkv,
        keys=keys,
        values=values,
        batch_rows=torch.tensor(order, dtype=torch.int32),
        lengths=torch.tensor([*lengths, 1], dtype=torch.int32),
        block_tables=tables,
        rotations=torch.cat((angles.cos(), angles.sin()), dim=-1),
        scale=head_dim**-0.5,
        q_norm=1 + 0.3 * random(head_dim) if norm else None,
        k_norm=1 + 0.3 * random(head_dim) if norm else None,
        eps=1e-6,
        window=window,
    )
    tensors: dict[str, Any] = {
        name: value.to(device) for name, value in attrs.asdict(case).items() if isinstance(value, Tensor)
    }
    return attrs.evolve(case, **tensors)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("splits", [1, 2, 3, 6])
def test_ragged_rows_in_any_number_of_splits(
    device: torch.device, dtype: torch.dtype, splits: int, early: bool
) -> None:
    make_case([1, 2, 16, 17, 33, 70], device, dtype, heads=(2, 1)).check(splits, early=early)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("window", [1, 2, 17, 18, 30, 100])
def test_tokens_that_left_the_window_are_not_read(
    device: torch.device, dtype: torch.dtype, window: int, splits: int, early: bool
) -> None:
    make_case([1, 16, 31, 48], device, dtype, heads=(2, 1), window=window).check(splits, early=early)


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (8, 2), (5, 1), (14, 2), (18, 1)])
def test_any_number_of_query_heads_per_kv_head(
    device: torch.device, dtype: torch.dtype, heads: tuple[int, int]
) -> None:
    make_case([20, 37], device, dtype, heads=heads).check(2, early=True)
    make_case([20, 37], device, dtype, heads=heads).check(1)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_head_dims(device: torch.device, dtype: torch.dtype, head_dim: int, norm: bool, early: bool) -> None:
    case = make_case([1, 35], device, dtype, heads=(3, 1), head_dim=head_dim, norm=norm)
    case.check(2, tiling=None, early=early)
    case.check(1, early=early)


@pytest.mark.parametrize(("batch", "splits"), [(1, 2), (1, 32), (8, 2), (32, 2), (64, 1), (256, 1)])
@pytest.mark.parametrize("head_dim", [8, 16, 32, 64, 128])
def test_the_tilings_of_serving(
    device: torch.device, dtype: torch.dtype, head_dim: int, batch: int, splits: int
) -> None:
    tiling = choose_tile(batch, head_dim, dtype, splits)
    case = make_case([3, 150, 1, 65], device, dtype, head_dim=head_dim)
    case.check(splits, tiling, tiling.early)


@pytest.mark.parametrize("block_size", [16, 32, 48, 64, 128])
def test_block_sizes(device: torch.device, dtype: torch.dtype, block_size: int) -> None:
    case = make_case([block_size, block_size + 1, 2 * block_size + 3], device, dtype, block_size=block_size)
    case.check(2, Tiling(64, 4, 3, early=False))
    case.check(1, early=True)


@pytest.mark.parametrize("splits", [1, 4])
def test_padding_places_share_a_row(device: torch.device, dtype: torch.dtype, splits: int) -> None:
    make_case([40, 3], device, dtype, padding=3, norm=True).check(splits, early=splits > 1)


def test_few_and_many_rows_by_their_own_tilings(device: torch.device, dtype: torch.dtype) -> None:
    make_case([150], device, dtype).check(1, tiling=None, early=True)
    make_case([3, 40, 18, 70, 1, 2, 33, 34, 35], device, dtype, heads=(2, 1)).check(1, tiling=None)


def test_every_split_of_a_long_row_counts(device: torch.device, dtype: torch.dtype) -> None:
    make_case([530], device, dtype, heads=(2, 1), block_size=64).check(32, early=True)
    make_case([100], device, dtype, heads=(1, 1), head_dim=256, block_size=64).check(64)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("splits", [1, 3])
def test_a_row_is_the_same_wherever_it_sits(
    device: torch.device, dtype: torch.dtype, splits: int, early: bool
) -> None:
    case = make_case([40, 70, 17, 9], device, dtype)
    crowd, *_ = case.fast(splits, early=early)
    for place in range(len(crowd)):
        alone = attrs.evolve(case, qkv=case.qkv[[place]], batch_rows=case.batch_rows[[place]])
        assert torch.equal(alone.fast(splits, early=early)[0][0], crowd[place])


def test_large_scores_do_not_overflow(device: torch.device, dtype: torch.dtype) -> None:
    case = make_case([50, 20], device, dtype)
    out, *_ = attrs.evolve(case, scale=20.0).fast(3)
    assert out.isfinite().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="fills gigabytes that only a GPU has to spare")
@pytest.mark.parametrize("early", [False, True])
def test_pools_of_more_than_2_to_the_31_elements(device: torch.device, early: bool) -> None:
    case = make_case([50, 20], device, torch.float16)
    offset = 2**31 // case.keys[0].numel() + 1
    keys, values = (
        cache.new_empty(offset + len(cache), *cache.shape[1:]) for cache in (case.keys, case.values)
    )
    keys[offset:], values[offset:] = case.keys, case.values
    far = attrs.evolve(case, keys=keys, values=values, block_tables=case.block_tables + offset)
    for near, result in zip(case.fast(2, early=early), far.fast(2, early=early), strict=True):
        assert torch.equal(near.nan_to_num(7), result[-len(near) :].nan_to_num(7))


def test_a_scratch_serves_any_batch_and_splits_of_its_product(
    device: torch.device, dtype: torch.dtype
) -> None:
    scratch = SplitScratch.create(8, 4, 64, 1, device)
    case = attrs.asdict(make_case([50], device, dtype))
    out = torch.empty(1, 4 * 64, dtype=dtype, device=device)
    qkv, keys, values = (case.pop(name) for name in ("qkv", "keys", "values"))
    decode_attention(qkv, keys, values, out, **case, splits=8, scratch=scratch)
    assert not out.isnan().any()


def test_a_scratch_that_is_too_small_is_refused(device: torch.device, dtype: torch.dtype) -> None:
    scratch = SplitScratch.create(1, 4, 64, 2, device)
    case = attrs.asdict(make_case([50], device, dtype))
    out = torch.empty(1, 4 * 64, dtype=dtype, device=device)
    qkv, keys, values = (case.pop(name) for name in ("qkv", "keys", "values"))
    with pytest.raises(ValueError, match="3 splits exceed"):
        decode_attention(qkv, keys, values, out, **case, splits=3, scratch=scratch)


def test_splits_fill_the_machine_and_bound_the_longest_walk() -> None:
    for batch in (1, 2, 3, 7, 8, 9, 16, 33, 64, 256, 1024):
        for kv_heads in (1, 2, 5, 8):
            for context in (1, 100, 1000, 4096, 4097, 32768, 131072):
                splits = choose_splits(batch, kv_heads, context, 132)
                assert splits.bit_count() == 1
                assert splits <= MAX_SPLITS
                assert context / splits <= MAX_TOKENS_PER_SPLIT
                assert splits == 1 or context / splits > 32, "splits without a tile"
    chosen = [choose_splits(batch, 8, 1024, 132) for batch in (1, 8, 16, 32, 64, 256)]
    assert chosen == [16, 8, 8, 4, 1, 1]
    assert choose_splits(1, 8, 4096, 132) == 32
    assert choose_splits(1, 8, 32768, 132) == 64


def test_every_head_dim_and_dtype_has_tilings() -> None:
    for head_dim in (16, 64, 80, 96, 128, 256):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            few, many = choose_tile(1, head_dim, dtype), choose_tile(64, head_dim, dtype)
            assert few.early == (head_dim > 16)
            assert not many.early
            assert min(few.tokens, many.tokens) >= 16


def test_the_tilings_are_one_sorted_table_that_ends_with_everything() -> None:
    keys = [(most_bytes, most_rows, -splits) for most_bytes, most_rows, splits, _ in TILINGS]
    assert keys == sorted(set(keys))
    assert TILINGS[-1][:3] == (4 * 256, ANY, 1)
    chosen = [
        choose_tile(rows, 64, torch.bfloat16, splits) for rows, splits in ((1, 1), (1, 32), (48, 1), (49, 1))
    ]
    assert [(tile.tokens, tile.warps) for tile in chosen] == [(64, 4), (128, 4), (32, 1), (64, 1)]
