"""Paged attention equals its one-query-at-a-time truth, over caches whose every invisible position is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from nanoserve.kernels.paged import PagedCache
from nanoserve.kernels.paged_attention import (
    invariant_attention,
    paged_attention,
    plan_attention,
    plan_invariant_attention,
)
from nanoserve.kernels.paged_attention.reference import paged_attention as reference
from nanoserve.kernels.testing import Inputs
from nanoserve.kernels.testing_attention import Heads, paged_cache

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@attrs.frozen(kw_only=True, eq=False)
class Case:
    """Rows of (queries, context) over a pool in which all that no query may see is NaN."""

    query: Tensor
    cache: PagedCache
    query_lengths: tuple[int, ...]
    context_lengths: tuple[int, ...]
    scoring: dict[str, Any]

    def fast(self) -> Tensor:
        plan = plan_attention(
            self.cache.tables,
            self.query_lengths,
            self.context_lengths,
            num_kv_heads=self.cache.keys.shape[1],
            block_size=self.cache.keys.shape[2],
            block_stride=self.cache.block_stride // self.cache.keys.stride(1),
            window=self.cache.window,
            dtype=self.query.dtype,
        )
        return paged_attention(self.query, *self.cache[:2], plan, **self.scoring)

    def invariant(self) -> Tensor:
        plan = plan_invariant_attention(
            self.cache.tables, self.query_lengths, self.context_lengths, window=self.cache.window
        )
        return invariant_attention(self.query, *self.cache[:2], plan, **self.scoring)

    def exact(self) -> Tensor:
        return reference(
            self.query,
            self.cache,
            query_lengths=self.query_lengths,
            context_lengths=self.context_lengths,
            **self.scoring,
        )


def make_case(
    rows: Sequence[tuple[int, int]],
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    block_size: int = 4,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    **scoring: Any,
) -> Case:
    inputs, sizes = Inputs(torch.device("cpu"), dtype), Heads(*heads, head_dim, block_size, window, **scoring)
    spans = [(sizes.first_seen(context - queries), context) for queries, context in rows]
    cache = paged_cache(inputs, sizes, spans)
    return Case(
        query=inputs.normal(sum(queries for queries, _ in rows), heads[0], head_dim),
        cache=cache._replace(tables=cache.tables[:-1].long()),
        query_lengths=tuple(queries for queries, _ in rows),
        context_lengths=tuple(context for _, context in rows),
        scoring=sizes.scoring(inputs),
    )


ROWS = {
    "one-token": [(1, 1)],
    "one-decode": [(1, 37)],
    "whole-blocks": [(1, 32), (1, 16)],
    "decodes-alike": [(1, 30), (1, 31), (1, 32), (1, 33)],
    "decodes-unlike": [(1, 3), (1, 120), (1, 1), (1, 64), (1, 5)],
    "prefill": [(19, 19)],
    "chunk": [(7, 30)],
    "two-chunks": [(2, 2), (9, 40)],
    "longer-than-a-tile": [(140, 170)],
    "three-pieces": [(3, 300), (1, 257)],
    "mixed": [(5, 5), (1, 40), (12, 29), (1, 7), (1, 90), (3, 8)],
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("window", [None, 1, 6, 1000])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
def test_it_equals_the_reference_over_nan(
    rows: list[tuple[int, int]], window: int | None, dtype: torch.dtype
) -> None:
    case = make_case(rows, window=window, dtype=dtype)
    exact = case.exact()
    torch.testing.assert_close(case.fast().float(), exact, rtol=0, atol=TOLERANCE[dtype])
    torch.testing.assert_close(case.invariant().float(), exact, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (8, 4), (4, 1), (8, 1), (12, 4)], ids=str)
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_heads_and_block_sizes(heads: tuple[int, int], block_size: int) -> None:
    case = make_case([(1, 21), (6, 14), (1, 3)], heads=heads, block_size=block_size, head_dim=10)
    exact = case.exact()
    torch.testing.assert_close(case.fast(), exact, rtol=0, atol=1e-5)
    torch.testing.assert_close(case.invariant(), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [ROWS["decodes-alike"], ROWS["longer-than-a-tile"], ROWS["mixed"]], ids=str)
@pytest.mark.parametrize(
    "scoring",
    [{"soft_cap": 1.5, "multiplier": 0.6}, {"sinks": True}, {"soft_cap": 2.0, "sinks": True}],
    ids=str,
)
@pytest.mark.parametrize("window", [None, 6])
def test_soft_caps_and_sinks(
    window: int | None, scoring: dict[str, Any], rows: list[tuple[int, int]]
) -> None:
    case = make_case(rows, window=window, heads=(6, 2), **scoring)
    exact = case.exact()
    torch.testing.assert_close(case.fast(), exact, rtol=0, atol=1e-5)
    torch.testing.assert_close(case.invariant(), exact, rtol=0, atol=1e-5)
    plain = attrs.evolve(case, scoring={"scale": case.scoring["scale"]})
    assert (plain.exact() - exact).abs().max() > 0.05
