"""The formula of a mixture of experts, in float32, and the values that describe one."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nanoserve.kernels.forms import StoredWeight

STEEPNESS = 1.702
"""Steepness of the sigmoid in a clamped gate."""


class Routing(NamedTuple):
    """The rule by which a token chooses its experts from its logits.

    Attributes:
        top: how many it chooses. The lower index wins among equal scores.
        score: of the logits: softmax or sigmoid over all experts, or the logits themselves, whose softmax over the
            chosen ones are the weights.
        groups, top_groups: experts lie in so many groups, of which only the best are open.
        group_score: a group's score: its best expert's, or the sum of its best two.
        normalized: whether the weights are divided by their sum plus `sum_eps`.
        scale: what they are multiplied with in the end.
        shared: how many experts, behind all others, every token passes through with weight 1.
        shared_gate: whether that weight is the sigmoid of one more logit, behind all others.
        held: the experts that are here, numbered from 0 on; a chosen one that is elsewhere has the number -1. None for all.
    """

    top: int
    score: Literal["softmax", "sigmoid", "softmax_of_chosen"] = "softmax"
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "top2"] = "max"
    normalized: bool = True
    sum_eps: float = 0.0
    scale: float = 1.0
    shared: int = 0
    shared_gate: bool = False
    held: range | None = None

    @property
    def slots(self) -> int:
        """Experts that a token passes through."""
        return self.top + self.shared

    def count(self, logits: Tensor) -> int:
        """The number of experts to choose from, by the logits [T, E], or [T, E + 1] with a shared gate."""
        return logits.shape[1] - self.shared_gate

    def here(self, logits: Tensor) -> range:
        """The experts that are here, by the logits."""
        return range(self.count(logits)) if self.held is None else self.held


class Experts(NamedTuple):
    """Stacked feeds of one size I, shared ones last: down(activation(gate(x)) * up(x)).

    Attributes:
        gate_up: [E, 2 I, H], the gate's rows first.
        down: [E, H, I]. Both are plain, or both as a checkpoint stores them, which is for a GPU alone.
        gate_up_bias, down_bias: [E, 2 I] and [E, H].
        clamp: the bound c of gpt-oss's gate, g / (1 + exp(-1.702 g)) * (u + 1) with g = min(gate, c) and u = up within
            -c and c; None for gate / (1 + exp(-gate)) * up.
        others: how many more tokens choose among that are elsewhere; nothing is added for those.
    """

    gate_up: Tensor | StoredWeight
    down: Tensor | StoredWeight
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    clamp: float | None = None
    others: int = 0


class Chosen(NamedTuple):
    """The experts of each token, best first, shared ones last: int32 [T, slots], -1 of one that is elsewhere; and their weights, float32 [T, slots]."""

    experts: Tensor
    weights: Tensor


def choose(logits: Tensor, routing: Routing, correction: Tensor | None = None) -> Chosen:
    """Logits [T, E]; `correction` [E] is added to scores for the choice, though not for the weights."""
    added = [0.0] * routing.count(logits) if correction is None else correction.float().tolist()
    rows = [_choose(row, routing, added) for row in logits.detach().float().cpu()]
    experts, weights = zip(*rows, strict=True)
    device = logits.device
    return Chosen(
        torch.tensor(experts, dtype=torch.int32, device=device), torch.tensor(weights, device=device)
    )


def _choose(logits: Tensor, routing: Routing, correction: list[float]) -> tuple[list[int], list[float]]:
    count = len(correction)
    scores = _scores(logits[:count], routing.score)
    choice = (scores + torch.tensor(correction)).tolist()
    size = count // routing.groups
    best_two = [sorted(choice[first : first + size], reverse=True)[:2] for first in range(0, count, size)]
    group_scores = [sum(best) if routing.group_score == "top2" else best[0] for best in best_two]
    groups = sorted(range(routing.groups), key=lambda group: (-group_scores[group], group))
    opened = groups[: routing.top_groups] if routing.groups > 1 else groups
    candidates = [expert for group in opened for expert in range(group * size, group * size + size)]
    chosen = sorted(candidates, key=lambda expert: (-choice[expert], expert))[: routing.top]
    weights = scores[chosen]
    if routing.score == "softmax_of_chosen":
        weights = weights.softmax(0)
    if routing.normalized:
        weights = weights / (weights.sum() + routing.sum_eps)
    shared = float(logits[count].sigmoid()) if routing.shared_gate else 1.0
    here = routing.here(logits[None])
    behind = range(len(here), len(here) + routing.shared)
    numbers = [here.index(expert) if expert in here else -1 for expert in chosen]
    return [*numbers, *behind], [*(weights * routing.scale).tolist(), *[shared] * routing.shared]


def _scores(logits: Tensor, kind: str) -> Tensor:
    if kind == "softmax":
        return logits.softmax(0)
    return logits.sigmoid() if kind == "sigmoid" else logits


def feed(x: Tensor, experts: Experts, chosen: Chosen) -> Tensor:
    """The weighted sum of the outputs of each token's experts, in the order of the slots: [T, H], float32."""
    total = torch.zeros(x.shape, device=x.device)
    for ids, weights in zip(chosen.experts.T, chosen.weights.T, strict=True):
        for expert in ids[ids >= 0].unique().tolist():
            tokens = ids == expert
            gate_up = x[tokens].float() @ experts.gate_up[expert].float().T
            if experts.gate_up_bias is not None:
                gate_up = gate_up + experts.gate_up_bias[expert].float()
            made = gated(gate_up, experts.clamp) @ experts.down[expert].float().T
            if experts.down_bias is not None:
                made = made + experts.down_bias[expert].float()
            total[tokens] += weights[tokens, None] * made
    return total


def products(x: Tensor, weight: Tensor | StoredWeight, ids: Tensor, bias: Tensor | None) -> Tensor:
    """Each row of x [P, K] times the weight [E, N, K] of its expert, plus the bias [E, N]: float32 [P, N]."""
    out = torch.empty(len(x), weight.shape[1], device=x.device)
    for expert in range(len(weight)):
        rows = ids == expert
        out[rows] = x[rows].float() @ weight[expert].float().T
    return out if bias is None else out + bias[ids].float()


def gated(gate_up: Tensor, clamp: float | None) -> Tensor:
    """The activation of the first half of the last dimension, times the second half; float32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    if clamp is None:
        return gate / (1 + torch.exp(-gate)) * up
    gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
    return gate / (1 + torch.exp(-STEEPNESS * gate)) * (up + 1)
