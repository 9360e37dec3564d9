"""Choices of every kind, and feeds of tokens that choose evenly, all alike, or from a few experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from nanoserve.kernels.experts import launch, reference
from nanoserve.kernels.experts.reference import Chosen, Experts, Routing
from nanoserve.kernels.forms.launch import quantize_rows_into
from nanoserve.kernels.testing import Comparison, Inputs, compare_around_poison, expect, scratch

PAIRS_PER_EXPERT: Final = (1, 8, 20, 40, 64)
"""One number for each tile that lists run with."""


def random_choice(
    inputs: Inputs, tokens: int, slots: int, count: int, *, among: int = 0, others: int = 0
) -> Chosen:
    """Different experts of each token, among all or the first few, with weights of both signs; `others` more are elsewhere."""
    chosen = [inputs.shuffled((among or count) + others)[:slots] for _ in range(tokens)]
    rows = [[expert if expert < (among or count) else -1 for expert in row] for row in chosen]
    return Chosen(inputs.these(rows), inputs.normal(tokens, slots, dtype=torch.float32))


def check_choose_experts(
    inputs: Inputs,
    routing: Routing,
    logits: Tensor,
    correction: Tensor | None = None,
    *,
    bias: Tensor | None = None,
) -> Iterator[Comparison]:
    """Experts and weights of logits [T, E], or of slices [S, T, E] with a bias; the experts are those of the reference exactly."""
    slices = logits if logits.dim() == 3 else logits[None]
    total = sum(slices, start=torch.zeros_like(slices[0]) if bias is None else bias.float())
    experts, weights = reference.choose(total, routing, correction)
    everyone, _ = reference.choose(total, routing._replace(held=None), correction)
    counted = torch.bincount(everyone[:, : routing.top].flatten(), minlength=routing.count(total))
    return inputs.compare(
        launch.choose_experts,
        f"of {routing.count(total)} experts, {routing}",
        logits=slices,
        routing=routing,
        out=Chosen(expect(experts), expect(weights, dtype=torch.float32)),
        bias=bias,
        correction=correction,
        counts=None if routing.held is None else expect(3 + counted, torch.full_like(counted, 3)),
    )


def check_feed_rows(
    inputs: Inputs,
    experts: Experts,
    chosen: Chosen,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    *,
    anew: bool = False,
) -> Iterator[Comparison]:
    """The sum that is added to the stream that x is, or to another one where x has been normed before; or `anew` it alone."""
    tokens, hidden = len(chosen.experts), experts.down.shape[1]
    x = inputs.normal(tokens, hidden)
    entering = x.float()
    if norm_weight is not None:
        rms = torch.sqrt((entering * entering).mean(dim=-1, keepdim=True) + eps)
        entering = entering / rms * norm_weight.float()
    is_own = norm_weight is not None and not anew
    before = x if is_own else inputs.normal_like(x)
    total = reference.feed(entering, experts, chosen)
    stream = expect(total) if anew else expect(before.float() + total, before)
    return inputs.compare(
        launch.feed_rows,
        _case(experts, chosen),
        x=stream if is_own else x,
        experts=experts,
        chosen=chosen,
        stream=stream,
        workspace=_poisoned_workspace(inputs, chosen, experts),
        norm_weight=norm_weight,
        eps=eps,
        anew=anew,
    )


def check_feed_lists(
    inputs: Inputs, experts: Experts, chosen: Chosen, *, invariant: bool = False
) -> Iterator[Comparison]:
    """Partial sums of each slot; x stays as it is. What is rounded to 8-bit floats between two products is compared behind each."""
    (tokens, slots), hidden = chosen.experts.shape, experts.down.shape[1]
    x = inputs.normal(tokens, hidden)
    if launch.lists_round(experts, x, slots, invariant=invariant):
        yield from _check_rounded_lists(inputs, x, experts, chosen, invariant=invariant)
        return
    of_slots = [Chosen(*(each[:, slot : slot + 1] for each in chosen)) for slot in range(slots)]
    wanted = torch.stack([reference.feed(x, experts, each) for each in of_slots])
    wanted[chosen.experts.T < 0] = torch.nan
    yield from inputs.compare(
        launch.feed_lists,
        _case(experts, chosen),
        x=x,
        experts=experts,
        chosen=chosen,
        partials=expect(wanted, dtype=torch.float32 if tokens <= 64 else None),
        workspace=_poisoned_workspace(inputs, chosen, experts),
        invariant=invariant,
    )


def _check_rounded_lists(
    inputs: Inputs, x: Tensor, experts: Experts, chosen: Chosen, *, invariant: bool
) -> Iterator[Comparison]:
    space, slots = _workspace(inputs, chosen, experts), chosen.experts.shape[1]
    space.inner.fill_(torch.nan)
    space.order.zero_()  # where kernels are only compiled, no pair is written
    partials = inputs.poisoned(slots, *x.shape)
    inputs.settle()
    launch.feed_lists(x, experts, chosen, partials, workspace=space, invariant=invariant, pdl=inputs.pdl)
    ids, weights = chosen.experts.flatten(), chosen.weights.flatten()
    pairs = space.order[: int((ids >= 0).sum())].long()
    numbers, scales = space.rounded
    inner = numbers[: len(ids) * experts.down.shape[2]].view(len(ids), -1)[: len(pairs)].float()
    left = space.inner.view(len(ids), -1)[: len(pairs)]
    entered = torch.empty_like(x, dtype=numbers.dtype), torch.empty_like(scales[: len(x)])
    quantize_rows_into(x, *entered)
    rounded = (entered[0].float() * entered[1][:, None])[pairs // slots]
    made = reference.products(rounded, experts.gate_up, ids[pairs], experts.gate_up_bias)
    yield Comparison(f"inner {_case(experts, chosen)}", left, reference.gated(made, experts.clamp))
    rows = inner * scales[: len(pairs), None]
    made = reference.products(rows, experts.down, ids[pairs], experts.down_bias) * weights[pairs, None]
    wanted = torch.full(partials.shape, torch.nan, device=x.device)
    wanted[pairs % slots, pairs // slots] = made
    yield from compare_around_poison(f"partials {_case(experts, chosen)}", partials, wanted)


def check_every_tile(
    inputs: Inputs, experts: Experts, slots: int, *, invariant: bool
) -> Iterator[Comparison]:
    """Lists of each length that asks for another tile, of tokens that crowd at a few experts."""
    count, others = len(experts.down), experts.others
    for pairs in PAIRS_PER_EXPERT:
        tokens = max(2, -(-pairs * (count + others) // slots))
        chosen = random_choice(
            inputs, tokens, slots, count, among=min(count, slots + 1), others=min(others, slots)
        )
        yield from check_feed_lists(inputs, experts, chosen, invariant=invariant)


def _workspace(inputs: Inputs, chosen: Chosen, experts: Experts) -> launch.ExpertsWorkspace:
    (tokens, slots), (count, hidden, size) = chosen.experts.shape, experts.down.shape
    how: dict[str, Any] = {"dtype": inputs.dtype, "device": inputs.device, "entering": tokens * hidden}
    return launch.ExpertsWorkspace.create(tokens * slots, count, size, **how)


def _poisoned_workspace(inputs: Inputs, chosen: Chosen, experts: Experts) -> launch.ExpertsWorkspace:
    space = _workspace(inputs, chosen, experts)
    return space._replace(inner=scratch(space.inner))


def _case(experts: Experts, chosen: Chosen) -> str:
    (tokens, slots), (count, hidden, size) = chosen.experts.shape, experts.down.shape
    return f"of {tokens} tokens of {hidden}, {slots} of {count} experts of {size}"
