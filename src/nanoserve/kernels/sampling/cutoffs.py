"""The filters as one number per row: every token below the cutoff is out.

Top-p needs no sort of the vocabulary: the weights are summed into bins by distance from the likeliest token, the
cumulative sum names the bin in which p is crossed, and only that bin is sorted.
"""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 4096
BINS_PER_NAT = 128.0


def cutoffs(
    scaled: Tensor, *, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None
) -> Tensor | None:
    """The smallest value kept in each row, [n], or None where every filter is None.

    `scaled` [n, vocab] is x of the law: 0 for the likeliest token of each row, less for the others.
    """
    cutoff = None if min_p is None else min_p.log()
    if top_k is not None:
        kth = _kth_largest(scaled, top_k)
        cutoff = kth if cutoff is None else torch.maximum(cutoff, kth)
    if top_p is not None:
        cutoff = _nucleus(scaled, top_p, cutoff)
    return cutoff


def _kth_largest(scaled: Tensor, top_k: Tensor) -> Tensor:
    """The k-th largest value of each row, -inf for the rows that keep the whole vocabulary."""
    cutoff = scaled.new_full((len(scaled),), -torch.inf)
    limited = (top_k < scaled.shape[1]).nonzero()[:, 0]
    if len(limited):
        ks = top_k[limited]
        among = scaled if len(limited) == len(scaled) else scaled[limited]
        largest = among.topk(int(ks.max()), sorted=True).values
        cutoff[limited] = largest.gather(1, ks[:, None] - 1)[:, 0]
    return cutoff


def _nucleus(scaled: Tensor, top_p: Tensor, cutoff: Tensor | None) -> Tensor:
    """The logit of the token that crosses p among the tokens from `cutoff` on; rows with p = 1 keep `cutoff`.

    Weights are summed in float64, so that the order of summation does not move the crossing.
    """
    weights = scaled.exp().double()
    if cutoff is not None:
        weights.masked_fill_(scaled < cutoff[:, None], 0)
    num_bins = min(BINS, scaled.shape[1])
    bins = (scaled * -BINS_PER_NAT).clamp_(max=num_bins - 1).long().clamp_(0)  # NaN becomes a bin, too
    binned = weights.new_zeros(len(scaled), num_bins).scatter_add_(1, bins, weights)
    sums = binned.cumsum(1)
    goal = top_p * sums[:, -1]
    above = sums - binned
    crossing = (above < goal[:, None]).sum(1, keepdim=True) - 1
    spent = above.gather(1, crossing.clamp(min=0))
    found = _crossing_value(scaled, weights, bins == crossing, goal[:, None] - spent)
    low = found.new_full((), -torch.inf) if cutoff is None else cutoff
    return torch.where(top_p < 1, found, low)


def _crossing_value(scaled: Tensor, weights: Tensor, inside: Tensor, goal: Tensor) -> Tensor:
    """The value at which the weights of the tokens `inside`, likeliest first, reach `goal` [n, 1]."""
    rows, columns = inside.nonzero(as_tuple=True)
    counts = torch.bincount(rows, minlength=len(scaled))
    places = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    width = max(int(counts.max()), 1)
    values = scaled.new_full((len(scaled), width), -torch.inf)
    values[rows, places] = scaled[rows, columns]
    masses = weights.new_zeros(len(scaled), width)
    masses[rows, places] = weights[rows, columns]
    values, order = values.sort(dim=1, descending=True)
    masses = masses.gather(1, order)
    kept = (masses.cumsum(1) - masses < goal).logical_and_(masses > 0).sum(1, keepdim=True)
    return values.gather(1, kept.clamp(min=1) - 1)[:, 0]
