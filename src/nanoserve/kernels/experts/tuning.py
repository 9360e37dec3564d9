"""The tile of a mixture of experts, by rules from its sizes and the number of tokens.

One token reads its experts by itself. Several that share an expert read it together: on an H200 that is faster from two
tokens on. A weight that is hit is read whole, however few tokens hit it. So what counts is how many tokens an expert gets,
T * slots / E on average: up to some dozens the reading is all that takes time, and one tile of tokens per expert is enough;
beyond that the arithmetic counts.

The row tiles keep 64 to 256 bytes in flight per thread. The tile of 16 tokens is 64 x 128 of the weight in 3 stages. The widest
reads 384 rows for 256 x 128 sums: narrower ones ask more of the L2 cache than it can give while the tensor cores are busy. What
other tiles take stands in `docs/log.md`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import triton

from nanoserve.kernels.forms import FP8, PLAIN, Form

MOST_PROGRAMS = 128
"""Programs that sort a step's pairs: each reads the counts of all."""
FEWER_PROGRAMS = 32
"""Programs that sort fewer pairs. Between them lie no others: each number is one more kernel to compile."""
BLOCK = 64
"""Pairs that one program compares with one another at a time."""
MOST_COUNTED = 2048
"""Pairs up to which that takes less time than a launch."""
_COMPARED = 16_384
"""Numbers times experts that one program compares at a time."""
FEWEST = 8
"""Tokens of the smallest tile."""
_MARGIN = 2048
"""Bytes of shared memory that a kernel needs beside its tiles."""


class RowTile(NamedTuple):
    """`rows` rows of a weight by `warps` warps, K in pieces of `chunk`."""

    rows: int
    warps: int
    chunk: int


@cache
def gate_up_row_tile(k: int, itemsize: int) -> RowTile:
    """The tile of gate and up rows of k elements."""
    rows = 4
    while rows > 2 and rows * k * itemsize > 8 * 32 * 256:
        rows //= 2
    return RowTile(rows, _warps(rows * k * itemsize, 128), _chunk(k))


@cache
def down_row_tile(k: int, slots: int, itemsize: int) -> tuple[int, int]:
    """Warps, and the piece of k that they read at a time, for one row of k elements of each slot."""
    padded = triton.next_power_of_2(slots)
    chunk = min(triton.next_power_of_2(k), max(256, 2048 // padded))
    return max(4, _warps(slots * k * itemsize, 128)), chunk


def _warps(size: int, bytes_per_thread: int) -> int:
    return min(8, max(1, triton.next_power_of_2(triton.cdiv(size, 32 * bytes_per_thread))))


def _chunk(k: int) -> int:
    """All of k if it is a power of two, else the largest one from 256 to 2048 that divides it, else with a rest."""
    if k == triton.next_power_of_2(k):
        return min(k, 2048)
    dividing = k & -k
    return min(2048, dividing if dividing >= 256 else triton.next_power_of_2(k))


class Sorting(NamedTuple):
    """`programs` programs sort `share` pairs each, `block` at a time, and describe `tiles` tiles at a time.

    Each counts by itself all pairs, up to `all`, or, where this is 0, reads what all have counted before.
    """

    programs: int
    share: int
    block: int
    tiles: int
    all: int


@cache
def sorting(pairs: int, experts: int) -> Sorting:
    """How so many (token, slot) pairs are sorted by expert."""
    padded = triton.next_power_of_2(experts)
    tiles = max(16, min(BLOCK, _COMPARED // padded))
    if pairs <= MOST_COUNTED:
        every = max(2 * BLOCK, triton.next_power_of_2(pairs))
        return Sorting(every // BLOCK, BLOCK, BLOCK, tiles, every)
    programs = min(MOST_PROGRAMS, max(1, 2 * _COMPARED // padded))
    if pairs <= 4 * BLOCK * FEWER_PROGRAMS:
        programs = min(FEWER_PROGRAMS, programs)
    share = triton.cdiv(triton.cdiv(pairs, programs), BLOCK) * BLOCK
    return Sorting(programs, share, BLOCK, tiles, 0)


class ListTile(NamedTuple):
    """Tiles of `bm` tokens of one expert times `bn` rows of its weight, `bk` elements at a time."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    rounded: bool = False
    """True if tokens are rounded to 8-bit floats, too, so that these multiply with one another (ADR 0028)."""

    @property
    def described(self) -> bool:
        """True if the copy engine fetches contiguous data."""
        return self.bm >= 64

    @property
    def group(self) -> int:
        """Tiles whose columns come one after the other: 8 of many tokens; 0, all, of few, where each expert has but one."""
        return 8 if self.bm >= 64 else 0


# Measured on an H200 with the experts of gpt-oss (MXFP4) and MiniMax-M2 (8-bit floats), in percent of what reading them takes:
# one token 37% and 58%, 8 tokens 54% and 85%, 64 tokens 56% and 91%; widening takes the rest.


@cache
def stored_gate_up_tile(k: int, form: Form) -> RowTile:
    """The tile of gate and up rows of k stored numbers."""
    return RowTile(16 if form.per_word > 1 else 4, 4, min(1024, triton.next_power_of_2(k)))


@cache
def stored_down_tile(k: int, slots: int, form: Form) -> tuple[RowTile, int]:
    """The tile of rows of k stored numbers, of which each token adds those of all its slots; and how many slots are in flight."""
    packed = form.per_word > 1
    at_once = next(count for count in ((2, 1) if packed else (4, 3, 2, 1)) if slots % count == 0)
    chunk = min(1024 if packed else 512, triton.next_power_of_2(k))
    return RowTile(8 if packed else 2, 4, chunk), at_once


def _stored_list_tile(
    tokens: int, slots: int, experts: int, itemsize: int, form: Form, *, room: int, invariant: bool
) -> ListTile:
    """`list_tile` of stored weights: a step of one byte a number may not be longer than what has one scale."""
    packed = form.per_word > 1
    fewest = 16 if itemsize == 4 or packed else FEWEST
    bm = max(fewest, triton.next_power_of_2(triton.cdiv(3 * tokens * slots, 2 * experts)))
    if itemsize == 4:
        return ListTile(16 if invariant else min(bm, 64), 32, 32, 4, 2)
    if isinstance(form, FP8) and (invariant or bm >= 64):
        tall = bm > 64 and not invariant
        tile = ListTile(128 if tall else 64, 128, 128, 8 if tall else 4, 4, rounded=True)
        return tile._replace(stages=min(4, (room - _MARGIN) // ((tile.bm + tile.bn) * tile.bk)))
    if invariant or bm == 64:
        tile = ListTile(64, 128, 64, 4, 3)
    elif bm == 32:
        tile = ListTile(bm, 64, 128, 4, 4)
    elif bm > 64:
        tile = ListTile(128, 128 if packed else 256, 64, 8, 3)
    elif packed:
        tile = ListTile(bm, 64, 256, 4, 3)
    else:  # by two warps, which take instructions of the tensor cores that wait for no other warp
        tile = ListTile(bm, 64, 128, 2, 4 if bm == FEWEST else 3)
    per_stage = (tile.bm * itemsize + tile.bn) * tile.bk
    widened = tile.bn * tile.bk * itemsize if tile.bm >= 64 else 0
    return tile._replace(stages=max(1, min(tile.stages, (room - _MARGIN - widened) // per_stage)))


@cache
def list_tile(
    tokens: int, slots: int, experts: int, itemsize: int, form: Form = PLAIN, *, room: int, invariant: bool
) -> ListTile:
    """The tile of products over lists, one for gate and up and for down, because they share the lists.

    Args:
        tokens: of the step.
        slots: experts of a token.
        experts: how many there are, so that each gets tokens * slots / experts on average.
        itemsize: bytes per element.
        form: of the weights.
        room: bytes of shared memory that a program may have.
        invariant: whether the tile may not depend on the number of tokens.
    """
    if form is not PLAIN:
        return _stored_list_tile(tokens, slots, experts, itemsize, form, room=room, invariant=invariant)
    # Half as many again as the average, so that few experts need a second tile.
    bm = 64 if invariant else max(16, triton.next_power_of_2(triton.cdiv(3 * tokens * slots, 2 * experts)))
    if itemsize == 4:  # without tensor cores: small tiles, which compile quickly
        return ListTile(16 if invariant else min(bm, 32), 32, 32, 4, 2)
    if bm == 16:
        tile = ListTile(bm, 64, 128, 4, 3)
    elif bm <= 64:
        tile = ListTile(bm, 128, 64, 4, 3)
    else:
        tile = ListTile(128, 256, 64, 8, 4)
    per_stage = (tile.bm + tile.bn) * tile.bk * itemsize
    return tile._replace(stages=max(1, min(tile.stages, (room - _MARGIN) // per_stage)))


def most_tiles(pairs: int, experts: int, bm: int) -> int:
    """Tiles of at most `bm` pairs of one expert that so many pairs make, whatever is chosen."""
    return triton.cdiv(pairs, bm) + min(pairs, experts)
