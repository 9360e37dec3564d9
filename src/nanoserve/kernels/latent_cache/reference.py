"""Cache entries and rotated queries as their definitions, in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.kernels.paged import rotate


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
