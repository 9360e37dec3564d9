"""Tokens of several adapters of different ranks and of none, over a product of several parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nanoserve.kernels.low_rank import reference
from nanoserve.kernels.low_rank.launch import Product, Slots, add_low_rank
from nanoserve.kernels.low_rank.tuning import column_tiles, make_groups
from nanoserve.kernels.testing import Comparison, Inputs, expect, scratch

START = 7
"""Numbers, divided by the rank, that a slot has before those of the product."""


def check_add_low_rank(
    inputs: Inputs,
    runs: Sequence[tuple[int, int, int]],
    width: int,
    slots_of_tokens: Sequence[int],
    *,
    ranks: Sequence[int] = (16, 48, 32),
    tile: int = 16,
    splits: int = 1,
    out_dtype: torch.dtype | None = None,
) -> Iterator[Comparison]:
    """`runs` of columns (first, end, part), x of `width`; tokens have slots 1 to the number of ranks, or 0."""
    parts, columns, tokens = 1 + max(part for *_, part in runs), runs[-1][1], len(slots_of_tokens)
    start_b = START + parts * width
    numbers = inputs.poisoned(len(ranks), max(ranks) * (start_b + columns))
    x, before = inputs.normal(tokens, width), inputs.normal(tokens, columns)
    wanted = before.float().clone()
    for slot, rank in enumerate(ranks, start=1):
        a, b = _factors(numbers[slot - 1], rank, (parts, width, columns))
        a.copy_(inputs.normal(*a.shape) * width**-0.5)
        b.copy_(inputs.normal(*b.shape) * rank**-0.5)
        ours = [token for token, each in enumerate(slots_of_tokens) if each == slot]
        wanted[ours] += reference.low_rank_delta(x[ours], a, b, runs)
    made = make_groups(((slot, token, 1) for token, slot in enumerate(slots_of_tokens)), tile)
    groups = [*made.groups, (0, 0, 0)]  # batches are padded with such
    largest = torch.empty(splits, tokens + 1, parts * max(ranks), dtype=torch.float32, device=inputs.device)
    return inputs.compare(
        add_low_rank,
        f"{parts} parts, {splits} splits, groups of {tile}",
        x=x,
        out=expect(wanted, before.to(out_dtype or inputs.dtype)),
        slots=Slots(numbers, inputs.these([0, *ranks])),
        product=Product(START, start_b, parts, inputs.these(column_tiles(runs))),
        groups=inputs.these(groups),
        order=inputs.these(made.order or [0]),
        shrunk=scratch(largest),
        tile=tile,
        splits=splits,
    )


def _factors(slot: Tensor, rank: int, sizes: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """A [parts, rank, width] and B [columns, rank] in a slot's numbers."""
    parts, width, columns = sizes
    a, b = slot[rank * START :], slot[rank * (START + parts * width) :]
    return a[: parts * rank * width].view(parts, rank, width), b[: columns * rank].view(columns, rank)
