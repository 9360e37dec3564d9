"""Paged attention one query at a time, in float32: the truth that fast versions are compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.kernels.heads import HeadTransform, Scoring, rotate
from nanoserve.kernels.kept import narrowed
from nanoserve.kernels.paged import PagedCache, attend


def paged_attention(
    query: Tensor, cache: PagedCache, row: int, start: int, scoring: Scoring, *, end: int | None = None
) -> Tensor:
    """Consecutive queries [T, num_heads, head_dim] of a row, the first at position `start`, to float32 of that shape; see `paged.attend`."""
    return torch.stack(
        [attend(each, cache, row, start + i, scoring, end=end) for i, each in enumerate(query)]
    )


def decode_attention(
    qkv: Tensor,
    cache: PagedCache,
    transform: HeadTransform,
    *,
    batch_rows: Tensor,
    lengths: Tensor,
    limits: Tensor | None = None,
    width: int = 1,
    scoring: Scoring,
    is_written: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Arguments as in `launch.decode_attention`; `is_written`, whether the cache has the new tokens already.

    Returns:
        The float32 output [B * width, num_heads * head_dim], NaN for tokens that mean nothing, and the keys and values with
        the new tokens written.
    """
    cache = cache._replace(keys=cache.keys.clone(), values=cache.values.clone())
    _, kv_heads, block_size, head_dim = cache.keys.shape
    num_heads = qkv.shape[1] // head_dim - 2 * kv_heads
    outputs = []
    for number, token in enumerate(qkv.view(len(qkv), -1, head_dim)):
        row = int(batch_rows[number // width])
        position = int(lengths[row]) - 1 + number % width
        if limits is not None and position >= int(limits[row]) - 1:
            outputs.append(torch.full((num_heads, head_dim), torch.nan, device=qkv.device))
            continue
        rotation = transform.rotations[position]
        query = rotate(_norm(token[:num_heads], transform.q_norm, transform.eps), rotation)
        key = rotate(_norm(token[num_heads:-kv_heads], transform.k_norm, transform.eps), rotation)
        slot = (int(cache.tables[row, position // block_size]), slice(None), position % block_size)
        key_scales, value_scales = (None, None) if cache.scales is None else cache.scales
        if not is_written:
            cache.keys[slot] = narrowed(key, key_scales).to(cache.keys.dtype)
            cache.values[slot] = narrowed(token[-kv_heads:], value_scales)
        outputs.append(attend(query, cache, row, position, scoring))
    return torch.stack(outputs).flatten(1), cache.keys, cache.values


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm of each head, [heads, head_dim], if there is a weight; float32."""
    x = x.float()
    if weight is None:
        return x
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight.float()
