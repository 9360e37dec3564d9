"""Projections become queries and cache entries as by definition; every other place of the cache stays NaN."""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import Tensor

from nanoserve.kernels.rope_and_cache.launch import rope_and_cache, rope_and_cache_newest
from nanoserve.kernels.rope_and_cache.reference import read_cache
from nanoserve.kernels.rope_and_cache.reference import rope_and_cache as reference

TOLERANCE = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
EPS = 1e-5
MAX_POSITION = 300


@attrs.frozen(kw_only=True, eq=False)
class Case:
    """Projections of tokens (row, position) and empty pools of NaN."""

    qkv: Tensor
    query: Tensor
    keys: Tensor
    values: Tensor
    token_rows: Tensor
    positions: Tensor
    block_tables: Tensor
    rotations: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None

    def run(self) -> None:
        rope_and_cache(
            self.qkv,
            self.query,
            self.keys,
            self.values,
            token_rows=self.token_rows,
            positions=self.positions,
            block_tables=self.block_tables,
            rotations=self.rotations,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            eps=EPS,
        )

    def run_newest(self) -> None:
        """The same, each token the newest of its row."""
        lengths = torch.full((self.block_tables.shape[0],), 10**9, dtype=torch.int32, device=self.qkv.device)
        lengths[self.token_rows.long()] = self.positions + 1
        rope_and_cache_newest(
            self.qkv,
            self.query,
            self.keys,
            self.values,
            batch_rows=self.token_rows,
            lengths=lengths,
            block_tables=self.block_tables,
            rotations=self.rotations,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            eps=EPS,
        )

    def exact(self) -> tuple[Tensor, Tensor, Tensor]:
        head_dim = self.keys.shape[3]
        return reference(
            self.qkv,
            num_heads=self.query.shape[1] // head_dim,
            head_dim=head_dim,
            positions=self.positions,
            rotations=self.rotations,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            eps=EPS,
        )

    def check(self) -> None:
        query, key, value = self.exact()
        place = self.token_rows, self.positions, self.block_tables
        tolerance = TOLERANCE[self.qkv.dtype]
        close = torch.testing.assert_close
        close(self.query.float(), query.flatten(1), rtol=tolerance, atol=tolerance)
        close(read_cache(self.keys, *place).float(), key, rtol=tolerance, atol=tolerance)
        assert torch.equal(read_cache(self.values, *place).float(), value)
        for pool in (self.keys, self.values):
            assert int((~pool.isnan()).sum()) == key.numel()


def make_case(
    tokens: list[tuple[int, int]],
    *,
    device: torch.device,
    dtype: torch.dtype,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 64,
    block_size: int = 16,
    norm: bool = False,
) -> Case:
    generator = torch.Generator().manual_seed(len(tokens) + head_dim)
    num_heads, num_kv_heads = heads
    rows, width = 5, -(-MAX_POSITION // block_size)
    tables = torch.randperm(rows * width, generator=generator).view(rows, width).int()
    inverse = 500.0 ** -torch.linspace(0, 1, head_dim // 2)
    angles = torch.arange(MAX_POSITION)[:, None] * inverse

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    def nan(*shape: int) -> Tensor:
        return torch.full(shape, torch.nan, dtype=dtype, device=device)

    pool = (rows * width, num_kv_heads, block_size, head_dim)
    return Case(
        qkv=normal(len(tokens), (num_heads + 2 * num_kv_heads) * head_dim),
        query=nan(len(tokens), num_heads * head_dim),
        keys=nan(*pool),
        values=nan(*pool),
        token_rows=torch.tensor([row for row, _ in tokens], dtype=torch.int32, device=device),
        positions=torch.tensor([position for _, position in tokens], dtype=torch.int32, device=device),
        block_tables=tables.to(device),
        rotations=torch.cat((angles.cos(), angles.sin()), dim=1).to(device),
        q_norm=1 + 0.2 * normal(head_dim) if norm else None,
        k_norm=1 + 0.2 * normal(head_dim) if norm else None,
    )


CHUNK_AND_DECODE = [(3, position) for position in range(13, 19)] + [(0, 0), (4, 299), (1, 31), (2, 32)]


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_it_equals_the_reference(head_dim: int, norm: bool, device: torch.device, dtype: torch.dtype) -> None:
    case = make_case(CHUNK_AND_DECODE, head_dim=head_dim, norm=norm, device=device, dtype=dtype)
    case.run()
    case.check()


@pytest.mark.parametrize("block_size", [16, 32, 48, 128])
def test_block_sizes(block_size: int, device: torch.device, dtype: torch.dtype) -> None:
    case = make_case(CHUNK_AND_DECODE, block_size=block_size, device=device, dtype=dtype)
    case.run()
    case.check()


@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (28, 4), (40, 8), (33, 33), (3, 1)], ids=str)
def test_head_counts(heads: tuple[int, int], device: torch.device, dtype: torch.dtype) -> None:
    case = make_case([(1, 5), (0, 20)], heads=heads, norm=True, device=device, dtype=dtype)
    case.run()
    case.check()


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "normed"])
def test_the_newest_tokens_find_their_own_positions(
    norm: bool, device: torch.device, dtype: torch.dtype
) -> None:
    tokens = [(4, 0), (0, 299), (2, 16), (1, 15)]
    case = make_case(tokens, norm=norm, device=device, dtype=dtype)
    case.run_newest()
    case.check()


def test_a_normed_head_is_rounded_before_it_is_rotated(device: torch.device) -> None:
    case = make_case(CHUNK_AND_DECODE, norm=True, device=device, dtype=torch.float16)
    case.run()
    query, _, _ = case.exact()
    assert (case.query == query.flatten(1).half()).float().mean() > 0.99


def test_padding_may_share_one_slot(device: torch.device, dtype: torch.dtype) -> None:
    case = make_case([(1, 7), (4, 0), (4, 0), (4, 0)], device=device, dtype=dtype)
    case.qkv[2:] = case.qkv[1]
    case.run()
    place = case.token_rows[:2], case.positions[:2], case.block_tables
    assert read_cache(case.values, *place).isfinite().all()
    assert int((~case.values.isnan()).sum()) == 2 * case.keys.shape[1] * case.keys.shape[3]


def test_scaled_heads_norm_to_the_same(device: torch.device, dtype: torch.dtype) -> None:
    case = make_case([(0, 9)], heads=(2, 2), norm=True, device=device, dtype=dtype)
    case.run()
    first, second = case.query.clone(), case.keys.clone()
    case.qkv[:, : 4 * 64] *= 64
    case.run()
    tolerance = max(TOLERANCE[dtype], 1e-4)  # eps counts for less
    torch.testing.assert_close(case.query, first, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(case.keys, second, rtol=tolerance, atol=tolerance, equal_nan=True)
