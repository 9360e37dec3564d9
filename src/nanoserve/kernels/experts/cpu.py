"""A mixture of experts by torch's own operators: one expert at a time, over the tokens that have chosen it."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from nanoserve.kernels.experts.reference import STEEPNESS, Chosen, Experts, Routing
from nanoserve.kernels.whole_vectors import in_whole_vectors

TOLD = "torch's own, expert by expert"
"""The products here, for people."""
ROWS = 16
"""Rows of every product, so that bits do not depend on the number of tokens of an expert."""


def choose(
    logits: Tensor,
    routing: Routing,
    correction: Tensor | None = None,
    counts: Tensor | None = None,
    record: Tensor | None = None,
) -> Chosen:
    """Choose each token's experts and their weights.

    Args:
        logits: float32 [T, E], or [T, E + 1] with a shared gate.
        routing: how.
        correction: float32 [E], added to scores for the choice, though not for the weights.
        counts: int64 [E], to which the tokens of each expert are added.
        record: int32, at least T * slots, into which the choice is written as a GPU leaves it: the first numbers of each token's slots.
    """
    count = routing.count(logits)
    scores = logits[:, :count]
    if routing.score == "softmax":
        scores = scores.softmax(-1)
    elif routing.score == "sigmoid":
        scores = in_whole_vectors(torch.sigmoid, scores)
    choice = scores if correction is None else scores + correction
    if routing.groups > 1:
        grouped = choice.view(len(choice), routing.groups, -1)
        best = grouped.topk(2 if routing.group_score == "top2" else 1, dim=-1).values.sum(-1)
        opened = torch.zeros_like(best, dtype=torch.bool).scatter_(
            1, _best(best, routing.top_groups), value=True
        )
        choice = grouped.masked_fill(~opened[..., None], -torch.inf).view_as(choice)
    experts = _best(choice, routing.top)
    weights = scores.gather(1, experts)
    if routing.score == "softmax_of_chosen":
        weights = weights.softmax(-1)
    if routing.normalized:
        weights = weights / (weights.sum(-1, keepdim=True) + routing.sum_eps)
    weights = weights * routing.scale
    if counts is not None:
        counts += torch.bincount(experts.flatten(), minlength=count)
    if record is not None:
        record[: len(experts) * routing.slots].view(len(experts), -1)[:, : routing.top] = experts
    here = routing.here(logits)
    experts = torch.where((experts >= here.start) & (experts < here.stop), experts - here.start, -1)
    if routing.shared:
        behind = torch.arange(len(here), len(here) + routing.shared, device=logits.device)
        behind = behind.expand(len(logits), -1)
        always = logits[:, count:].sigmoid() if routing.shared_gate else torch.ones_like(weights[:, :1])
        experts = torch.cat((experts, behind), dim=1)
        weights = torch.cat((weights, always.expand(-1, routing.shared)), dim=1)
    return Chosen(experts.int(), weights)


def _best(scores: Tensor, count: int) -> Tensor:
    """The indices of the highest scores of each row, of equal ones those with the lowest; `topk` promises no order."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def feed(x: Tensor, experts: Experts, chosen: Chosen) -> Tensor:
    """The weighted sum of the outputs of each token's experts, in the order of the slots.

    Args:
        x: [T, H], in the dtype of the experts.
        experts: the weights.
        chosen: of each token.

    Returns:
        [T, H] in the dtype of `x`; the sum is float32.
    """
    return _feed(x, experts, chosen, _pass_through)


def invariant_feed(x: Tensor, experts: Experts, chosen: Chosen) -> Tensor:
    """The same, `ROWS` rows at a time, filled up with zeros: other tokens change no bit of a token's."""
    return _feed(x, experts, chosen, _pass_fixed_rows_through)


def _feed(
    x: Tensor, experts: Experts, chosen: Chosen, pass_through: Callable[[Tensor, Experts, int], Tensor]
) -> Tensor:
    slots, pairs = chosen.experts.shape[1], chosen.experts.flatten()
    counts = torch.bincount(pairs + 1, minlength=1 + len(experts.down)).tolist()
    made = x.new_empty(len(pairs), x.shape[1])
    elsewhere, *here = torch.split(pairs.argsort(stable=True), counts)
    made[elsewhere] = 0
    for expert, its_pairs in enumerate(here):
        if len(its_pairs):
            made[its_pairs] = pass_through(x[its_pairs // slots], experts, expert)
    by_slot = made.view(len(x), slots, x.shape[1])
    total = torch.zeros(x.shape, dtype=torch.float32)
    for slot in range(slots):
        total += by_slot[:, slot] * chosen.weights[:, slot, None]
    return total.to(x.dtype)


def _apply(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return function(x)


def _pass_through(
    x: Tensor,
    experts: Experts,
    expert: int,
    each: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor] = _apply,
) -> Tensor:
    gate_up_bias = None if experts.gate_up_bias is None else experts.gate_up_bias[expert]
    down_bias = None if experts.down_bias is None else experts.down_bias[expert]
    gate_up, down = experts.gate_up, experts.down
    assert isinstance(gate_up, Tensor), "weights are kept as stored on a GPU alone"
    assert isinstance(down, Tensor)
    gate, up = F.linear(x, gate_up[expert], gate_up_bias).chunk(2, dim=-1)
    if experts.clamp is None:
        inner = each(F.silu, gate).mul_(up)
    else:
        gate, up = gate.clamp(max=experts.clamp), up.clamp(-experts.clamp, experts.clamp)
        inner = gate * each(torch.sigmoid, STEEPNESS * gate) * (up + 1)
    return F.linear(inner, down[expert], down_bias)


def _pass_fixed_rows_through(x: Tensor, experts: Experts, expert: int) -> Tensor:
    padded = F.pad(x, (0, 0, 0, -len(x) % ROWS))
    return torch.cat(
        [_pass_through(piece, experts, expert, in_whole_vectors) for piece in torch.split(padded, ROWS)]
    )[: len(x)]
