"""Paged attention one query at a time, in float32: the truth that fast versions are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def paged_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    block_tables: Tensor,
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    window: int | None,
    scale: float,
) -> Tensor:
    """Shapes as in the package's contract; returns float32 [T, num_heads, head_dim]."""
    outputs, token = [], 0
    for table, queries, context in zip(block_tables.tolist(), query_lengths, context_lengths, strict=True):
        for position in range(context - queries, context):
            first = 0 if window is None else max(0, position + 1 - window)
            visible = range(first, position + 1)
            key, value = _gather(keys, table, visible), _gather(values, table, visible)
            outputs.append(_attend(query[token].float(), key, value, scale))
            token += 1
    return torch.stack(outputs) if outputs else query.float()


def _gather(cache: Tensor, table: Sequence[int], positions: Sequence[int]) -> Tensor:
    """The cache entries of one row's positions, [positions, num_kv_heads, head_dim]."""
    block_size = cache.shape[2]
    return torch.stack([cache[table[p // block_size], :, p % block_size] for p in positions]).float()


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """One query [num_heads, head_dim] over its visible keys and values."""
    group = query.shape[0] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    weights = (torch.einsum("hd,lhd->hl", query, key) * scale).softmax(dim=-1)
    return torch.einsum("hl,lhd->hd", weights, value)
