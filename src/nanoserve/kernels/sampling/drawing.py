"""The law of this folder, fast: a cutoff instead of sorting, and noise only for tokens that can still win.

The noise is bounded, so a token that trails the likeliest by more than the noise can make up for has lost. Rows with
few tokens left draw noise for those alone, flat rows for the vocabulary, and the token is the same either way. Rows are taken in groups that fit a processor's cache. Reads sizes back from the tensors, so
it is made for the CPU; on a GPU it is right but waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nanoserve.kernels.sampling.argmax import argmax
from nanoserve.kernels.sampling.cutoffs import cutoffs
from nanoserve.kernels.sampling.philox import NOISE_RANGE, RUN, WORDS_PER_CALL, gumbel_rows, gumbel_tokens

VALUES_PER_GROUP = 2**17
ROUNDING = 0.125
OUT_OF_REACH = 1e9
SPARSE_SHARE = 8
"""Single tokens are drawn one Philox call each, whole rows four tokens a call: worth it below an eighth."""


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
        cutoff = cutoffs(scaled, top_k=filters[0], top_p=filters[1], min_p=filters[2])
        drawn = _gumbel_max(scaled, best, cutoff, seeds[group], positions[group])
        tokens[group] = torch.where(peak[:, 0].isfinite(), drawn, best)
    return tokens


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
