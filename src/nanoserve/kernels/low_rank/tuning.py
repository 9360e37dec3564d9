"""How tokens are put into groups, and how much of a product one program computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

UNIT: Final = 16
"""Ranks are multiples of it: the narrowest matrix that tensor cores multiply."""
COLUMNS: Final = 64
"""Columns of one program that expands."""
SLICE: Final = 512
"""Elements of x that one program reads of a few tokens: a product of one token has to be spread over the device."""


class Groups(NamedTuple):
    """Tokens in groups of one slot.

    Attributes:
        groups: (slot, first place in `order`, number of tokens) each.
        order: tokens, those of a slot together.
    """

    groups: list[tuple[int, int, int]]
    order: list[int]


def make_groups(runs: Iterable[tuple[int, int, int]], tile: int) -> Groups:
    """Groups of up to `tile` tokens from runs of tokens: (slot, 0 for none; first token; number of tokens) each."""
    by_slot: dict[int, list[int]] = {}
    for slot, first, count in runs:
        if slot:
            by_slot.setdefault(slot, []).extend(range(first, first + count))
    groups: list[tuple[int, int, int]] = []
    order: list[int] = []
    for slot, tokens in by_slot.items():
        groups += [
            (slot, len(order) + start, min(tile, len(tokens) - start))
            for start in range(0, len(tokens), tile)
        ]
        order += tokens
    return Groups(groups, order)


def most_groups(tokens: int, slots: int, tile: int) -> int:
    """No tokens of so many slots make more groups."""
    return min(tokens, slots + tokens // tile)


def column_tiles(runs: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Runs of columns (first, end, part) cut to at most `COLUMNS`."""
    return [
        (start, min(start + COLUMNS, end), part)
        for first, end, part in runs
        for start in range(first, end, COLUMNS)
    ]


def split_count(width: int) -> int:
    """Slices that x of `width` is cut into where there are few tokens."""
    return max(1, min(16, width // SLICE))
