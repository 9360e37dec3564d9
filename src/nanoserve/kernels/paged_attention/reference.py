"""Paged attention one query at a time, in float32: the truth that fast versions are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.kernels.paged import HeadTransform, PagedCache, attend, rotate


def paged_attention(
    query: Tensor,
    cache: PagedCache,
    *,
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Shapes as in the package's contract; returns float32 [T, num_heads, head_dim]."""
    places = [
        (row, position)
        for row, (queries, context) in enumerate(zip(query_lengths, context_lengths, strict=True))
        for position in range(context - queries, context)
    ]
    outputs = [
        attend(each, cache, *place, scale=scale, soft_cap=soft_cap, sinks=sinks)
        for each, place in zip(query, places, strict=True)
    ]
    return torch.stack(outputs) if outputs else query.float()


def decode_attention(
    qkv: Tensor,
    cache: PagedCache,
    transform: HeadTransform,
    *,
    batch_rows: Tensor,
    lengths: Tensor,
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Arguments as in `launch.decode_attention`.

    Returns:
        The float32 output [B, num_heads * head_dim], and the keys and values with the newest tokens written.
    """
    cache = cache._replace(keys=cache.keys.clone(), values=cache.values.clone())
    _, kv_heads, block_size, head_dim = cache.keys.shape
    num_heads = qkv.shape[1] // head_dim - 2 * kv_heads
    outputs = []
    for token, row in zip(qkv.view(len(qkv), -1, head_dim), batch_rows.tolist(), strict=True):
        position = int(lengths[row]) - 1
        rotation = transform.rotations[position]
        query = rotate(_norm(token[:num_heads], transform.q_norm, transform.eps), rotation)
        key = rotate(_norm(token[num_heads:-kv_heads], transform.k_norm, transform.eps), rotation)
        slot = (int(cache.tables[row, position // block_size]), slice(None), position % block_size)
        cache.keys[slot] = key.to(cache.keys.dtype)
        cache.values[slot] = token[-kv_heads:]
        outputs.append(attend(query, cache, row, position, scale=scale, soft_cap=soft_cap, sinks=sinks))
    return torch.stack(outputs).flatten(1), cache.keys, cache.values


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm of each head, [heads, head_dim], if there is a weight; float32."""
    x = x.float()
    if weight is None:
        return x
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight.float()


def prefill_attention(
    query: Tensor,
    cache: PagedCache,
    *,
    chunks: Sequence[tuple[int, int, int, int]],
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Float32 [T, num_heads * head_dim], NaN for tokens of no chunk; chunks as in `make_tiles`, the rest as in `launch`."""
    out = torch.full(query.shape, torch.nan, device=query.device)
    heads = query.view(len(query), -1, cache.keys.shape[3])
    for row, start, length, token in chunks:
        for offset in range(length):
            attended = attend(
                heads[token + offset], cache, row, start + offset, scale=scale, soft_cap=soft_cap, sinks=sinks
            )
            out[token + offset] = attended.flatten()
    return out
