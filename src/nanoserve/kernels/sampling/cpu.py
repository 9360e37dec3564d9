"""The sampling rule, fast on a CPU: a cutoff instead of sorting, and noise only for tokens that can still win.

The noise is bounded, so a token that trails the likeliest by more than the noise can make up for has lost. Rows with
few tokens left draw noise for those alone, flat rows for the vocabulary, and the token is the same either way. Rows
are taken in groups that fit a processor's cache. Sizes are read back from the tensors: on a GPU this is right but
waits for the device.

Top-p needs no sort of the vocabulary either: the weights are summed into bins by distance from the likeliest token, the
cumulative sum names the bin in which p is crossed, and only that bin is sorted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.kernels.philox import NOISE_RANGE, RUN, WORDS_PER_CALL, gumbel_rows, gumbel_tokens

VALUES_PER_GROUP = 2**17
ROUNDING = 0.125
OUT_OF_REACH = 1e9
SPARSE_SHARE = 8
"""Single tokens are drawn one Philox call each, whole rows four tokens a call: worth it below an eighth."""
SEGMENT = 256
"""Logits that `argmax` compares at a time."""
BINS = 4096
BINS_PER_NAT = 128.0


def draw(
    logits: Tensor,
    *,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor:
    """One token id per row, [n] int64; filters that are None apply to no row. Leaves `logits` as they are."""
    num_rows, vocab_size = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    step = max(1, VALUES_PER_GROUP // max(vocab_size, RUN * WORDS_PER_CALL))
    for start in range(0, num_rows, step):
        group = slice(start, start + step)
        best = argmax(logits[group])
        peak = logits[group].gather(1, best[:, None])
        scaled = (logits[group] - peak).div_(temperature[group, None])
        filters = [None if each is None else each[group] for each in (top_k, top_p, min_p)]
        cutoff = _cutoffs(scaled, top_k=filters[0], top_p=filters[1], min_p=filters[2])
        drawn = _gumbel_max(scaled, best, cutoff, seeds[group], positions[group])
        tokens[group] = torch.where(peak[:, 0].isfinite(), drawn, best)
    return tokens


def processed(
    logits: Tensor,
    token_ids: Tensor,
    *,
    temperature: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor:
    """The logits [n, vocab] float32 that the rule draws from, the largest of which is 0; settings are [n, 1]. Nothing is read back, so it is for a GPU, too.

    It sorts. `token_ids` [n] were drawn by another way of this rule: they stay, however a filter's edge is rounded.
    """
    scaled = (logits.float() - logits.amax(1, keepdim=True)) / temperature
    if top_k is None and top_p is None and min_p is None:
        return scaled
    ordered = scaled.sort(1, descending=True).values
    lowest = ordered[:, -1:] if top_k is None else ordered.gather(1, top_k - 1)
    if min_p is not None:
        lowest = torch.maximum(lowest, min_p.log())
    if top_p is not None:
        weights = ordered.double().exp().masked_fill_(ordered < lowest, 0)
        likelier = weights.cumsum(1) - weights
        count = ((likelier < top_p * weights.sum(1, keepdim=True)) & (weights > 0)).sum(1, keepdim=True)
        lowest = torch.where(top_p < 1, ordered.gather(1, count.clamp_(min=1) - 1), lowest)
    lowest = torch.minimum(lowest, scaled.gather(1, token_ids[:, None]))
    return scaled.masked_fill(scaled < lowest, -torch.inf)


def argmax(logits: Tensor) -> Tensor:
    """[n, vocab] to [n] int64: the first of the largest values, or the first NaN where there is one.

    torch's own argmax over a vocabulary carries an index along with every comparison; the largest value of each
    segment does not, and then one segment is left to search. About nine times faster at 128,256 tokens.
    """
    num_rows, vocab_size = logits.shape
    if logits.is_cuda or vocab_size % SEGMENT or not logits.is_contiguous():
        return logits.argmax(-1)
    segments = logits.view(num_rows, -1, SEGMENT)
    best = segments.amax(-1).argmax(-1)
    inside = segments.gather(1, best[:, None, None].expand(-1, 1, SEGMENT))[:, 0].argmax(-1)
    return best * SEGMENT + inside


def _gumbel_max(
    scaled: Tensor, best: Tensor, cutoff: Tensor | None, seeds: Tensor, positions: Tensor
) -> Tensor:
    lowest = scaled.new_full((len(scaled),), -NOISE_RANGE - ROUNDING)
    if cutoff is not None:
        lowest = torch.maximum(lowest, cutoff)
    alive = torch.ge(scaled, lowest[:, None], out=torch.empty_like(scaled))
    flat = alive.sum(1) * SPARSE_SHARE > scaled.shape[1]
    tokens = best.clone()
    for rows, choose in ((~flat, _among_few), (flat, _among_all)):
        chosen = rows.nonzero()[:, 0]
        if len(chosen) == len(tokens):
            return choose(scaled, alive, seeds, positions)
        if len(chosen):
            tokens[chosen] = choose(scaled[chosen], alive[chosen], seeds[chosen], positions[chosen])
    return tokens


def _among_all(scaled: Tensor, alive: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    scores = gumbel_rows(seeds, positions, scaled.shape[1]).add_(scaled)
    return argmax(scores.add_(alive.sub_(1).mul_(OUT_OF_REACH)))


def _among_few(scaled: Tensor, alive: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    rows, token_ids = alive.nonzero(as_tuple=True)
    scores = gumbel_tokens(seeds[rows], positions[rows], token_ids) + scaled[rows, token_ids]
    largest = scores.new_full((len(scaled),), -torch.inf).scatter_reduce_(0, rows, scores, "amax")
    winners = token_ids.masked_fill(scores < largest[rows], scaled.shape[1])
    lowest_id = torch.full_like(seeds, scaled.shape[1] - 1)
    return lowest_id.scatter_reduce_(0, rows, winners, "amin")


def _cutoffs(
    scaled: Tensor, *, top_k: Tensor | None, top_p: Tensor | None, min_p: Tensor | None
) -> Tensor | None:
    """The smallest value kept in each row, [n], or None if every filter is None.

    `scaled` [n, vocab] is x of the rule: 0 for the likeliest token of each row, less for the others.
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
