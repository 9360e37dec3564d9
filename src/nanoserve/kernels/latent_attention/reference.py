"""Latent attention in float32: absorbed one query at a time over a cache, expanded as it is defined, and products of heads."""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.kernels.latent import LatentCache, attend


def latent_attention(query: Tensor, cache: LatentCache, row: int, start: int, *, scale: float) -> Tensor:
    """Consecutive absorbed queries [T, num_heads, latent_dim + rope_dim] of a row from `start` on, to float32 [T, num_heads, latent_dim]."""
    return torch.stack([attend(each, cache, row, start + i, scale) for i, each in enumerate(query)])


def expanded_attention(
    query: Tensor, entries: Tensor, up_keys: Tensor, up_values: Tensor, *, scale: float
) -> Tensor:
    """The definition: every head computes its own keys and values from the latents; causal over one row.

    Args:
        query: [T, num_heads, nope_dim + rope_dim] of a row's last T tokens, rotated.
        entries: [context, latent_dim + rope_dim], latents after their norm and rotated keys.
        up_keys: [num_heads, nope_dim, latent_dim].
        up_values: [num_heads, value_dim, latent_dim].
        scale: what scores are multiplied with.

    Returns:
        Float32 [T, num_heads, value_dim].
    """
    latent_dim = up_keys.shape[2]
    latents, rotated = entries[:, :latent_dim].float(), entries[:, latent_dim:].float()
    keys = torch.einsum("hnl,cl->chn", up_keys.float(), latents)
    keys = torch.cat((keys, rotated[:, None].expand(-1, keys.shape[1], -1)), dim=2)
    values = torch.einsum("hvl,cl->chv", up_values.float(), latents)
    scores = torch.einsum("thd,chd->htc", query.float(), keys) * scale
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=query.device)
    hidden = hidden.triu(len(entries) - len(query) + 1)
    return torch.einsum("htc,chv->thv", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


def head_linear(x: Tensor, weight: Tensor) -> Tensor:
    """X [T, heads, K] times weight [heads, K, N]: float32 [T, heads, N]."""
    return torch.einsum("thk,hkn->thn", x.float(), weight.float())
