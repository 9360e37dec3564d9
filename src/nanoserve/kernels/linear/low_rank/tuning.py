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
MOST_SLICES: Final = (14, 8)
"""Slices of x of up to `FEW` tokens, and of more: whoever multiplies with B adds them up."""
MOST_PARTIALS: Final = 1024
"""Tokens times slices of x, unless there are more tokens."""
MOST_PROGRAMS: Final = 132
"""Programs of a kernel that shrinks, one for each multiprocessor of an H100 or H200: more wait until the last product's make room, and the next product's for them. Each takes several items if need be. Of up to `FEW` tokens two fit: 16 adapters of 16 rows add 621 us to an 8B's step instead of 930, while 64 rows of one lose 130."""
MOST_NARROW: Final = 8192
"""Columns of a product up to which one program for each multiprocessor multiplies with B beside it; of 28,672 two take 21 us for 32 adapters instead of 28."""

BESIDE: Final = 88 << 10
"""Bytes of shared memory that a program of `shrink` and one that multiplies with B have, at most, beside a product of few tokens."""


class ExpandTile(NamedTuple):
    """So many rows of B for 16 tokens at a time, `stages` of these in flight, by `programs` in all, of `warps` each with at most so many registers, 0 for any number."""

    rows: int
    stages: int
    programs: int
    warps: int = 4
    registers: int = 0


class Description(NamedTuple):
    """Which tokens have which adapter.

    Attributes:
        units: slots with all their tokens, `ITEM` numbers each; before them their number and zeros.
        items: the same, of 16 ranks and up to 16 tokens each; behind them tokens without adapters, and before them how many there are without and with these.
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
    plain: list[int] = []
    slots: list[int] = []
    for slot, count in runs:
        if not slot:
            plain += range(len(slots), len(slots) + count)
        else:
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
    for start in range(0, len(plain), UNIT):
        items += (0, 0, 0, len(order) + start, min(UNIT, len(plain) - start))
    order += plain
    items[1] = len(items) // ITEM - 1
    return Description(units, items, order, slots)


def most_units(tokens: int, slots: int) -> int:
    """Rows of units of this many tokens and slots."""
    return PADDING + min(tokens, slots)


def most_items(tokens: int, slots: int, rank: int) -> int:
    """Rows of items of these, of up to this rank."""
    return PADDING + min(tokens, slots + 1 + tokens // UNIT) * (rank // UNIT)


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


def expand_tile(columns: int, itemsize: int, *, beside: bool) -> ExpandTile:
    """The tile of a product with B, behind a product of so many columns, or beside one of few tokens, where both and `shrink` have to fit into a multiprocessor."""
    if itemsize == 4:  # small, which compiles quickly
        return ExpandTile(32, 2, MOST_PROGRAMS)
    programs = MOST_PROGRAMS * (1 + (columns > MOST_NARROW))
    return ExpandTile(256, 3, programs, 4, 88) if beside else ExpandTile(256, 2, 4 * MOST_PROGRAMS)
