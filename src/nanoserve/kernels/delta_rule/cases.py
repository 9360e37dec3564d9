"""Rows at and behind their beginning, over slots of NaN: their newest tokens, and chunks of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from nanoserve.kernels.delta_rule import launch, reference
from nanoserve.kernels.recurrent import DeltaHeads, DeltaStates, DeltaWeights
from nanoserve.kernels.testing import Comparison, Inputs, expect

LENGTHS: Final = (3, 70, 1, 5, 2)
"""Tokens of the rows; the newest is computed."""
CHUNKS: Final = ((0, 7), (5, 3), (63, 2), (64, 1), (1, 2), (0, 1), (3, 66))
"""The first position and the number of tokens of each row's chunk."""
WIDTH: Final = 3
"""Columns of the tables: one more than the slot needs, as pools of all kinds have the same."""


def random_weights(inputs: Inputs, heads: DeltaHeads) -> DeltaWeights:
    """Some heads remember hundreds of tokens and some hardly one."""
    rates = inputs.integers(0, 1000, heads.num_value_heads).float() / 1000
    return DeltaWeights(
        convolution=0.5 * inputs.normal(heads.channels, heads.taps),
        decay_log=math.log(0.005) + rates * math.log(16 / 0.005),
        decay_bias=1 + 0.2 * inputs.normal(heads.num_value_heads, dtype=torch.float32),
        norm=1 + 0.2 * inputs.normal(heads.value_dim),
        eps=1e-6,
    )


def random_tokens(inputs: Inputs, heads: DeltaHeads, count: int) -> Tensor:
    """Projections [count, width]; one query head and one key head are about as short as their norm's epsilon."""
    projected, keys = inputs.normal(count, heads.width), heads.num_key_heads * heads.key_dim
    for first in (0, keys):
        projected[:, first : first + heads.key_dim] *= 1e-3
    return projected


def random_states(
    inputs: Inputs, heads: DeltaHeads, rows: Sequence[tuple[int, int]], slots: int
) -> DeltaStates:
    """NaN except what rows (slot, tokens so far) have left."""
    shape = heads.num_value_heads, heads.key_dim, heads.value_dim
    states = DeltaStates(
        inputs.poisoned(slots, *shape, dtype=torch.float32),
        inputs.poisoned(slots, heads.taps, heads.channels, dtype=torch.float32),
    )
    for slot, length in rows:
        if length:
            states.sums[slot] = inputs.normal(*shape, dtype=torch.float32) / 4
            # As floats of the inputs' dtype: the kernel keeps what it reads, and nothing else is ever there.
            for position in range(max(0, length - heads.taps), length):
                states.recent[slot, position % heads.taps] = inputs.normal(heads.channels).float()
    return states


def check_delta_newest(inputs: Inputs, heads: DeltaHeads, *, invariant: bool = False) -> Iterator[Comparison]:
    """Places in another order than their rows; behind them padding, which shares slot 0."""
    weights, count = random_weights(inputs, heads), len(LENGTHS)
    order, slots = inputs.shuffled(count), [1 + each for each in inputs.shuffled(count + 1)][:count]
    before = random_states(
        inputs, heads, [(s, n - 1) for s, n in zip(slots, LENGTHS, strict=True)], count + 2
    )
    projected = random_tokens(inputs, heads, count + 1)
    wanted, after, shares = reference.delta_rule(
        projected,
        before,
        weights,
        heads,
        slots=[*(slots[row] for row in order), 0],
        starts=[*(LENGTHS[row] - 1 for row in order), 0],
        lengths=[1] * (count + 1),
    )
    projected, wanted, shares = (torch.cat((each, each[-1:])) for each in (projected, wanted, shares))
    return inputs.compare(
        launch.delta_rule_newest,
        str(heads),
        projected=projected,
        states=_states(before, after),
        weights=weights,
        heads=heads,
        out=expect(wanted, share=shares),
        batch_rows=inputs.these([*order, count, count]),
        lengths=inputs.these([*LENGTHS, 1]),
        tables=_tables(inputs, [*slots, 0]),
        invariant=invariant,
    )


def check_delta_chunks(
    inputs: Inputs,
    heads: DeltaHeads,
    chunks: Sequence[tuple[int, int]] | None = None,
    *,
    tiled: bool = False,
    keep: bool = True,
) -> Iterator[Comparison]:
    """Rows of (first position, number of tokens), in another order than their slots; `tiled`, in matrix products. Without `keep` states stay."""
    chunks = CHUNKS if chunks is None else chunks
    weights, count = random_weights(inputs, heads), len(chunks)
    slots = [1 + each for each in inputs.shuffled(count + 1)][:count]
    starts, lengths = zip(*chunks, strict=True)
    before = random_states(inputs, heads, list(zip(slots, starts, strict=True)), count + 2)
    projected = random_tokens(inputs, heads, sum(lengths))
    rows = {"slots": slots, "starts": starts, "lengths": lengths}
    wanted, after, shares = reference.delta_rule(projected, before, weights, heads, **rows)
    firsts = [sum(lengths[:row]) for row in range(count)]
    order = inputs.shuffled(count)
    arguments = {
        "projected": projected,
        "states": _states(before, after if keep else before),
        "weights": weights,
        "heads": heads,
        "out": expect(wanted, share=shares),
        "spans": inputs.these([(row, firsts[row], lengths[row], starts[row]) for row in order]),
        "tables": _tables(inputs, slots),
    }
    if not tiled:
        return inputs.compare(launch.delta_rule_chunks, str(heads), **arguments, keep=keep)
    space = launch.TileSpace.create(len(projected), [heads], dtype=inputs.dtype, device=inputs.device)
    for each in space:
        each.fill_(torch.nan)
    return inputs.compare(launch.delta_rule_tiles, str(heads), **arguments, space=space)


def _tables(inputs: Inputs, slots: Sequence[int]) -> Tensor:
    return inputs.these([[slot, *[10**6] * (WIDTH - 1)] for slot in slots])


def _states(before: DeltaStates, after: DeltaStates) -> DeltaStates:
    """Results of both; the recent inputs are copied."""
    return DeltaStates(
        expect(after.sums, before.sums, dtype=torch.float32),
        expect(after.recent, before.recent, exact=True, dtype=torch.float32),
    )
