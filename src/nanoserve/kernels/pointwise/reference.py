"""Norms and gates as their formulas, in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute x / sqrt(mean(x^2) + eps) * weight over the last dimension; float32."""
    x = x.float()
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight.float()


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Compute (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias over the last dimension; float32."""
    x = x.float() - x.float().mean(dim=-1, keepdim=True)
    normed = x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps) * weight.float()
    return normed if bias is None else normed + bias.float()


def add_rms_norm(
    partials: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    *,
    weight: Tensor,
    eps: float,
    branch_norm: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The norm of the residual plus all partials [S, M, K] and the bias, and that sum.

    With `branch_norm` as weight, the addition is normed before.
    """
    added = partials.float().sum(0) + (0 if bias is None else bias.float())
    total = residual.float() + (added if branch_norm is None else rms_norm(added, branch_norm, eps))
    return rms_norm(total, weight, eps), total


def norm_qkv(
    qkv: Tensor,
    norms: tuple[Tensor | None, Tensor | None],
    eps: float,
    clip: float | None,
    sizes: tuple[int, int],
) -> Tensor:
    """Queries, keys and values, x / sqrt(mean(x^2) + eps) * weight where there is a weight, within -clip and clip; float32.

    `sizes` are those of a query and of a key; the rest is the value.
    """
    q, k, v = torch.split(qkv.float(), [*sizes, qkv.shape[1] - sum(sizes)], dim=1)
    normed = [
        x if weight is None else rms_norm(x, weight, eps) for x, weight in zip((q, k), norms, strict=True)
    ]
    joined = torch.cat((*normed, v), dim=1)
    return joined if clip is None else joined.clamp(-clip, clip)


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """Compute x / (1 + e^-gate); float32."""
    return x.float() / (1 + torch.exp(-gate.float()))
