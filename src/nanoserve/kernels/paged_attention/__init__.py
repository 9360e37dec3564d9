"""Causal attention of ragged queries over a paged KV cache (Kwon et al. 2023), grouped-query heads included.

A plan, made once per step and cache group from the rows' tables and lengths, holds what all layers share; each
layer then passes its own queries and cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.kernels.paged_attention import torch_cpu
from nanoserve.kernels.paged_attention.plan import AttentionPlan, make_plan


def plan_attention(
    block_tables: Tensor,
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    *,
    num_kv_heads: int,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
) -> AttentionPlan:
    """Lay out one step's attention over one cache group.

    Args:
        block_tables: int64 [B, max_blocks]; the entries of tokens that no query sees are never read.
        query_lengths: B numbers, how many query tokens each row has; the queries are its last tokens.
        context_lengths: B numbers, how many tokens each row has, queries included.
        num_kv_heads: heads of the cache.
        block_size: tokens per block.
        window: None, or how many tokens a query sees at most, itself included.
        dtype: of queries and cache.
    """
    return make_plan(
        block_tables,
        query_lengths,
        context_lengths,
        num_kv_heads=num_kv_heads,
        block_size=block_size,
        window=window,
        dtype=dtype,
    )


def paged_attention(
    query: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, *, scale: float
) -> Tensor:
    """Attend to the visible tokens of each query's own row: softmax(scale * q k^T) v.

    No element outside of the visible positions influences the output, not even NaN.

    Args:
        query: [T, num_heads, head_dim], all rows' queries one after the other. Query heads
            [i * G, (i + 1) * G) share KV head i, with G = num_heads / num_kv_heads.
        keys: [blocks, num_kv_heads, block_size, head_dim], contiguous, in the dtype of `query`; the queries' own
            keys are already written.
        values: like `keys`.
        plan: from `plan_attention`.
        scale: usually head_dim ** -0.5.

    Returns:
        [T, num_heads, head_dim] in the dtype of `query`.
    """
    return torch_cpu.paged_attention(query, keys, values, plan, scale)


__all__ = ["AttentionPlan", "paged_attention", "plan_attention"]
