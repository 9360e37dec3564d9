"""The sampling rule as it is written, by sorting the vocabulary and drawing noise for all of it. For tests."""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.kernels.philox import gumbel_rows


def probabilities(
    logits: Tensor, *, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """The exact chances of each token, [n, vocab] float64, zero if a filter excludes it."""
    scaled = _scaled(logits, temperature).double()
    weights = scaled.exp().where(kept(scaled, top_k=top_k, top_p=top_p, min_p=min_p), 0.0)
    return weights / weights.sum(1, keepdim=True)


def draw(
    logits: Tensor,
    *,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
) -> Tensor:
    """One token id per row, [n] int64; arguments as in the contract, rows with finite logits only."""
    scaled = _scaled(logits, temperature)
    scores = scaled + gumbel_rows(seeds, positions, logits.shape[1])
    return scores.where(kept(scaled, top_k=top_k, top_p=top_p, min_p=min_p), -torch.inf).argmax(-1)


def kept(scaled: Tensor, *, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Which tokens the filters keep, [n, vocab] bool."""
    keep = scaled >= min_p.log()[:, None]
    kth = scaled.sort(dim=1, descending=True).values.gather(1, top_k[:, None] - 1)
    keep = keep & (scaled >= kth)
    weights = scaled.double().exp().where(keep, 0.0)
    for row in (top_p < 1).nonzero()[:, 0].tolist():
        likelier = scaled[row, None, :] > scaled[row, :, None]
        keep[row] &= (weights[row] * likelier).sum(1) < top_p[row] * weights[row].sum()
    return keep


def _scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    return (logits - logits.amax(1, keepdim=True)) / temperature[:, None]
