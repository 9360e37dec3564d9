"""Attention of prefill chunks one query at a time, in float32: the truth that the kernel is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def prefill_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    chunks: Sequence[tuple[int, int, int, int]],
    block_tables: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Float32 [T, num_heads * head_dim], NaN for tokens of no chunk; chunks as in `make_tiles`, the rest as in the package."""
    out = torch.full(query.shape, torch.nan, device=query.device)
    tables = block_tables.tolist()
    for row, start, length, token in chunks:
        for offset in range(length):
            position = start + offset
            first = 0 if window is None else max(0, position + 1 - window)
            key = _gather(keys, tables[row], first, position + 1)
            value = _gather(values, tables[row], first, position + 1)
            out[token + offset] = _attend(query[token + offset].float(), key, value, scale)
    return out


def _gather(pool: Tensor, table: Sequence[int], first: int, end: int) -> Tensor:
    """The cache entries of positions [first, end) of one row, [positions, num_kv_heads, head_dim]."""
    block_size = pool.shape[2]
    blocks = [table[position // block_size] for position in range(first, end)]
    slots = [position % block_size for position in range(first, end)]
    return pool[blocks, :, slots].float()


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """One query [num_heads * head_dim] over the keys and values it sees."""
    heads = query.view(-1, key.shape[2])
    group = heads.shape[0] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    weights = (torch.einsum("hd,lhd->hl", heads, key) * scale).softmax(dim=-1)
    return torch.einsum("hl,lhd->hd", weights, value).flatten()
