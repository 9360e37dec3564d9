"""Tokens of several adapters of different ranks and of none, over a product of several parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nanoserve.kernels.gates import Activation, gated
from nanoserve.kernels.linear.low_rank import reference
from nanoserve.kernels.linear.low_rank.launch import Adapters, Delta, Product, expand_into, shrink
from nanoserve.kernels.linear.low_rank.tuning import ITEM, PADDING, describe, slice_count
from nanoserve.kernels.testing import Comparison, Inputs, expect

START = 16
"""Numbers, divided by the rank, that a slot has before those of the product."""
RANKS = (16, 64, 32)
Runs = Sequence[tuple[int, int, int]]


def random_delta(
    inputs: Inputs,
    runs: Runs,
    x: Tensor,
    slots_of_tokens: Sequence[int],
    *,
    ranks: Sequence[int] = RANKS,
    invariant: bool = False,
    slices: int | None = None,
) -> tuple[Delta, Tensor]:
    """A delta before its inputs are shrunk, and its addition to a product of x, float32.

    `runs` are of columns (first, end, part); tokens have slots 1 to the number of ranks, or 0.
    """
    (tokens, width), parts, columns = x.shape, 1 + max(part for *_, part in runs), runs[-1][1]
    start_b = START + parts * width
    numbers = inputs.poisoned(len(ranks), max(ranks) * (start_b + columns))
    wanted = torch.zeros(tokens, columns, dtype=torch.float32, device=inputs.device)
    for slot, rank in enumerate(ranks, start=1):
        a, b = _factors(numbers[slot - 1], rank, (parts, width, columns))
        a.copy_(inputs.normal(*a.shape) * width**-0.5)
        b.copy_(inputs.normal(*b.shape) * rank**-0.5)
        ours = [token for token, each in enumerate(slots_of_tokens) if each == slot]
        wanted[ours] = reference.low_rank_delta(x[ours], a, b, runs)
    made = describe(((slot, 1) for slot in slots_of_tokens), dict(enumerate(ranks, start=1)))
    anything = [99] * (ITEM * PADDING)
    units, items = (inputs.these(each + anything).view(-1, ITEM) for each in (made.units, made.items))
    adapters = Adapters(numbers, units, items, inputs.these(made.order or [0]), inputs.these(made.slots))
    part_of = torch.cat([torch.full((end - first,), part, dtype=torch.int32) for first, end, part in runs])
    ends = tuple(end for _, end, _ in runs)
    product = Product(START, start_b, ends, part_of.to(inputs.device) if parts > 1 else None)
    slices = slices or slice_count(tokens, width, invariant=invariant)
    shrunk = inputs.poisoned(slices, tokens, parts * max(ranks), dtype=torch.float32)
    deltas = inputs.poisoned(tokens * columns)
    return Delta(adapters, product, shrunk, inputs.these([0]), deltas, invariant), wanted


def check_add_low_rank(
    inputs: Inputs,
    runs: Runs,
    width: int,
    slots_of_tokens: Sequence[int],
    *,
    out_dtype: torch.dtype | None = None,
    gate: Activation | None = None,
    **how: Any,
) -> Iterator[Comparison]:
    """Added to a product that there is already, or with a gate to two of which the gated product is written."""
    x = inputs.normal(len(slots_of_tokens), width)
    delta, wanted = random_delta(inputs, runs, x, slots_of_tokens, **how)
    before = inputs.normal_like(wanted).to(out_dtype or inputs.dtype)
    wanted += before.float()
    parts: dict[str, Any] = {"out": expect(wanted, before)}
    if gate is not None:
        parts = {"product": before, "gate": gate, "out": expect(gated(wanted, gate))}
    case = f"{len(delta.product.ends)} parts, {len(delta.shrunk)} slices"
    return inputs.compare(add_low_rank, case, x=x, delta=delta, **parts)


def add_low_rank(
    x: Tensor,
    out: Tensor,
    delta: Delta,
    *,
    product: Tensor | None = None,
    gate: Activation | None = None,
    pdl: bool = False,
) -> None:
    """Both kernels."""
    shrink(x, delta, pdl=pdl)
    expand_into(delta, out if product is None else product, (gate, out) if gate else None, pdl=pdl)


def _factors(slot: Tensor, rank: int, sizes: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """A [parts, rank, width] and B [columns, rank] in a slot's numbers."""
    parts, width, columns = sizes
    a, b = slot[rank * START :], slot[rank * (START + parts * width) :]
    return a[: parts * rank * width].view(parts, rank, width), b[: columns * rank].view(columns, rank)
