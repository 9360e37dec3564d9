"""The units of a step's tokens, and the part of a product that one program computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import triton

UNIT: Final = 16
"""Ranks that are multiplied at once, and tokens: the narrowest matrix that tensor cores multiply."""
ITEM: Final = 5
"""Numbers of a unit or an item: slot, rank of the slot, first rank of the item, first place in `order`, number of tokens."""
PADDING: Final = 48
"""Rows before and behind units and items: those of programs without one are looked at, too."""
STEP: Final = 1024
"""Elements of each row of x and A that one program multiplies at a time; they are in flight all together."""
WARPS: Final = 4
"""Warps of such a program; each multiplies a piece of a step by itself."""
FEW: Final = 16
"""Tokens, if there are several, up to which x is cut into steps of half the length: their partial sums are few, and come while the product is computed."""
MOST_WHOLE: Final = 64
"""Tokens from which on programs wait for room, and multiply half a step at a time: that kept 88.8% of an 8B's speed at 256 tokens on an H200, and not 87.9."""
AT_ONCE: Final = 4
"""Adapters behind the first whose B is multiplied at once: their columns fill a line of shared memory."""
STAGES: Final = 4
"""The least steps of the loop over adapters behind the first, one of which is multiplied while the others are in flight. The loop must not name them itself, or loads of slots count as steps, too."""
MOST_SLICES: Final = (14, 8)
"""Slices of x of up to `FEW` tokens, and of more: whoever multiplies with B adds them up."""
MOST_PARTIALS: Final = 1024
"""Tokens times slices of x, unless there are more tokens."""
MOST_PROGRAMS: Final = 132
"""Programs of a kernel that shrinks, one for each multiprocessor of an H100 or H200: more wait until the last product's make room, and the next product's for them. Each takes several items if need be."""


class Description(NamedTuple):
    """Which tokens have which adapter.

    Attributes:
        units: slots with all their tokens, `ITEM` numbers each; before them their number and zeros.
        items: the same, of 16 ranks and up to 16 tokens each.
        order: tokens, those of a slot together.
        slots: of each token its slot, or 0.
    """

    units: list[int]
    items: list[int]
    order: list[int]
    slots: list[int]


def describe(runs: Iterable[tuple[int, int]], ranks: Mapping[int, int]) -> Description:
    """Describe runs of tokens: (slot, 0 for none; number of tokens) each. `ranks` are those of slots."""
    by_slot: dict[int, list[int]] = {}
    slots: list[int] = []
    for slot, count in runs:
        if slot:
            by_slot.setdefault(slot, []).extend(range(len(slots), len(slots) + count))
        slots += [slot] * count
    units, items, order = [0] * ITEM, [0] * ITEM, list[int]()
    for slot, tokens in by_slot.items():
        units += (slot, ranks[slot], 0, len(order), len(tokens))
        for first in range(0, ranks[slot], UNIT):
            for start in range(0, len(tokens), UNIT):
                items += (slot, ranks[slot], first, len(order) + start, min(UNIT, len(tokens) - start))
        order += tokens
    units[0], items[0] = len(units) // ITEM - 1, len(items) // ITEM - 1
    return Description(units, items, order, slots)


def most_units(tokens: int, slots: int) -> int:
    """Rows of units of this many tokens and slots."""
    return PADDING + min(tokens, slots)


def most_items(tokens: int, slots: int, rank: int) -> int:
    """Rows of items of these, of up to this rank."""
    return PADDING + min(tokens, slots + tokens // UNIT) * (rank // UNIT)


def slice_count(tokens: int, width: int, *, invariant: bool) -> int:
    """Slices that x [tokens, width] is cut into."""
    if invariant:
        return 1
    most = MOST_SLICES[tokens > FEW]
    slices = -(-width // (STEP // 2 if 1 < tokens <= FEW else STEP))
    while slices > 1 and (slices > most or slices * tokens > MOST_PARTIALS):
        slices = -(-slices // 2)
    return slices


def most_partials(tokens: int) -> int:
    """Slices times tokens, of any number of tokens up to this one."""
    return max(tokens, MOST_PARTIALS)


def shrink_step(tokens: int, width: int, slices: int, itemsize: int, *, invariant: bool) -> int:
    """Elements of a row of x and of A that are multiplied at a time."""
    is_whole = invariant or tokens == 1 or FEW < tokens <= MOST_WHOLE
    # Tiles of float32 are small, so that they compile quickly.
    most = (STEP if is_whole else STEP // 2) if itemsize < 4 else 256
    return min(most, triton.next_power_of_2(max(256, -(-width // slices))))


def shrink_ways(widths: Sequence[int], most: int, *, invariant: bool) -> list[int]:
    """Numbers of tokens up to `most`, one for each way in which x of these widths is cut: each is a kernel of its own."""
    found: dict[object, int] = {}
    for tokens in range(most, 0, -1):
        slices = [slice_count(tokens, width, invariant=invariant) for width in widths]
        few = (tokens == 1) + (tokens <= FEW) + (tokens <= MOST_WHOLE)
        found.setdefault((*slices, 0 if invariant else few), tokens)
    return sorted(found.values())


def expand_tile(itemsize: int) -> tuple[int, int]:
    """Columns and tokens of one program that adds to a product."""
    return (128, 64) if itemsize < 4 else (32, 32)


def most_room(columns: int, tokens: int, itemsize: int) -> int:
    """Numbers of the places of all programs of a product, which has up to eight slices, and tiles of up to twice as many tokens as columns, in float32 four times."""
    bn, bm = expand_tile(itemsize)
    behind = triton.cdiv(columns, bn) * triton.cdiv(tokens, bm) * bm
    return UNIT * max(behind, 8 * itemsize * (columns + 128))
