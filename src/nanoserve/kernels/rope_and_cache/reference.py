"""Head norm, rotation and cache slots as their definitions, in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.kernels.paged import HeadTransform, rotate


def rope_and_cache(
    qkv: Tensor,
    *,
    num_heads: int,
    head_dim: int,
    positions: Tensor,
    transform: HeadTransform,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [T, num_heads, head_dim], keys and values [T, num_kv_heads, head_dim] of T tokens, in float32."""
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    num_kv_heads = (heads.shape[1] - num_heads) // 2
    query, key, value = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)
    rotation = transform.rotations[positions.long()]
    query = rotate(_norm(query, transform.q_norm, transform.eps), rotation)
    key = rotate(_norm(key, transform.k_norm, transform.eps), rotation)
    return query, key, value.float()


def read_cache(pool: Tensor, token_rows: Tensor, positions: Tensor, block_tables: Tensor) -> Tensor:
    """The content of a pool [blocks, num_kv_heads, block_size, head_dim] for each token, [T, num_kv_heads, head_dim]."""
    block_size = pool.shape[2]
    blocks = block_tables[token_rows.long(), positions.long() // block_size].long()
    return pool[blocks, :, positions.long() % block_size]


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x.float()
    scale = torch.rsqrt(x.float().square().mean(dim=-1, keepdim=True) + eps)
    return (x.float() * scale * weight.float()).to(x.dtype).float()
