"""Norms, rotations and cache entries as their definitions, in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.kernels.heads import HeadTransform, rotate


def rope_and_cache(
    qkv: Tensor, *, num_heads: int, head_dim: int, positions: Tensor, transform: HeadTransform
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [T, num_heads, head_dim], keys and values [T, num_kv_heads, head_dim] of T tokens, in float32."""
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    num_kv_heads = (heads.shape[1] - num_heads) // 2
    query, key, value = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)
    rotation = transform.rotations[positions.long()]
    query = rotate(_norm(query, transform.q_norm, transform.eps), rotation)
    key = rotate(_norm(key, transform.k_norm, transform.eps), rotation)
    return query, key, value.float()


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x.float()
    scale = torch.rsqrt(x.float().square().mean(dim=-1, keepdim=True) + eps)
    return (x.float() * scale * weight.float()).to(x.dtype).float()


def entries(projected: Tensor, weight: Tensor, eps: float, rotations: Tensor) -> Tensor:
    """Entries of T tokens in float32, the normed latent and then the rotated key.

    Args:
        projected: [T, latent_dim + rope_dim].
        weight: [latent_dim], of the norm.
        eps: added to the mean square.
        rotations: float32 [T, rope_dim], of each token's position: cosines, then sines.
    """
    latent, key = projected[:, : len(weight)].float(), projected[:, len(weight) :].float()
    normed = latent * torch.rsqrt(latent.square().mean(dim=1, keepdim=True) + eps) * weight.float()
    return torch.cat((normed, rotate(key[:, None], rotations)[:, 0]), dim=1)


def rotated_queries(heads: Tensor, rotations: Tensor) -> Tensor:
    """The last rope_dim elements of each head [T, num_heads, nope_dim + rope_dim], rotated, in float32."""
    return rotate(heads[..., -rotations.shape[1] :].float(), rotations)


def rope(x: Tensor, positions: Tensor, inverse_frequencies: Tensor) -> Tensor:
    """Rotate x [T, heads, head_dim]; float32."""
    first, second = x.float().chunk(2, dim=-1)
    angles = (positions.float()[:, None] * inverse_frequencies.float())[:, None]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
