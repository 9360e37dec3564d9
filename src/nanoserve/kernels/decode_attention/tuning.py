"""How decode attention is cut into programs: splits per row, and how a program walks its tokens.

Measured on an H200 with head_dim 64 in bfloat16. Programs of one warp win as soon as there are enough of them to fill
the machine, for their softmax needs no exchange between warps; a handful of rows is served sooner by larger programs
that hold a whole tile in registers before their query is known. Wider heads get as many bytes, hence fewer tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

MAX_SPLITS = 128
"""Splits of a row at most."""
MAX_TOKENS_PER_SPLIT = 4096
"""A row is split, whatever the batch, before one program walks more tokens than this while others have ended."""
PROGRAMS_PER_SM = 8
"""Programs that a multiprocessor holds and that hide each other's latency."""
FULL_PROGRAMS_PER_SM = 3
"""With as many (row, KV head) pairs per multiprocessor, splitting costs more than it balances."""
FEW_ROWS = 8
"""Batches up to this size wait for latency rather than for bandwidth."""
LONE_ROWS = 2
"""Batches up to this size are served sooner by larger programs."""
LONG_ROW = 1024
"""Tokens beyond which the rows of such a batch are worth larger tiles, each of which is read by fewer programs."""
LONG_SPLITS = 32
"""As many splits of such a batch, or more, say that its rows are long."""
SEVERAL_ROWS = 48
"""Larger batches are not split; up to here, a tile is better loaded early."""
SOME_ROWS = range(49, 129)
"""Batches that are not split and whose programs all run at once: larger tiles keep more bytes on their way."""
NARROWEST = 128
"""Bytes of one key of one head, padded to a power of two, from which on the tilings below were measured."""


class Tiling(NamedTuple):
    """How one program walks its tokens.

    Attributes:
        tokens: tokens per tile, a power of two of at least 16.
        warps: warps of the program.
        stages: of the pipeline; (stages - 1) / 2 tiles are on their way, as a tile's place is looked up first.
        early: whether, with programmatic dependent launch, the first tile should be loaded before the query is there.
    """

    tokens: int
    warps: int
    stages: int
    early: bool


_LONE = {
    128: Tiling(64, 4, 3, early=True),
    256: Tiling(32, 2, 5, early=True),
    512: Tiling(32, 4, 5, early=True),
    1024: Tiling(16, 4, 3, early=True),
}
"""Tilings for a row or two, by the bytes of one key of one head, padded to a power of two."""
_LONG = {**_LONE, 128: Tiling(128, 4, 3, early=True)}
"""The same for long rows."""
_FEW = {**_LONE, 128: Tiling(32, 1, 7, early=True)}
"""Tilings for a few rows, likewise."""
_SOME = {
    128: Tiling(64, 1, 7, early=False),
    256: Tiling(32, 2, 5, early=False),
    512: Tiling(16, 2, 7, early=False),
    1024: Tiling(16, 4, 3, early=False),
}
"""Tilings for batches that fill the machine about once, likewise."""
_MANY = {**_SOME, 128: Tiling(32, 1, 7, early=False), 256: Tiling(32, 1, 5, early=False)}
"""Tilings for others, likewise."""
_SEVERAL = {**_MANY, 128: _FEW[128]}
"""Tilings for more rows than a few, which may be split."""
_NARROW = Tiling(32, 1, 7, early=False)
"""For narrower heads: Triton 3.6 compiles tiles of 64 such tokens for one warp of an H200 to something wrong."""


def choose_tile(batch: int, head_dim: int, dtype: torch.dtype, splits: int = 1) -> Tiling:
    """The tiling for `batch` places in so many splits, at most 256 elements a head, and a cache of `dtype`."""
    size = triton.next_power_of_2(head_dim) * dtype.itemsize
    if size < NARROWEST:
        return _NARROW
    if batch <= LONE_ROWS:
        return (_LONG if splits >= LONG_SPLITS else _LONE)[size]
    if batch <= FEW_ROWS:
        return _FEW[size]
    if batch <= SEVERAL_ROWS:
        return _SEVERAL[size]
    return (_SOME if batch in SOME_ROWS else _MANY)[size]


def choose_splits(batch: int, kv_heads: int, max_context: int, num_sms: int, tile: int = 64) -> int:
    """Into how many splits to cut each row, a power of two.

    Enough that all multiprocessors have work, and that no program walks more than MAX_TOKENS_PER_SPLIT tokens; no more
    than leaves each a tile or more.

    Args:
        batch: places of the batch.
        kv_heads: KV heads of the cache (on this device).
        max_context: tokens of the longest row that the choice is for, or the window if that is smaller.
        num_sms: multiprocessors of the device.
        tile: tokens that a program walks at a time, see `choose_tile`.
    """
    pairs = batch * kv_heads
    smallest = tile if batch <= LONE_ROWS else 2 * tile if batch <= FEW_ROWS else 128 if batch <= 16 else 256
    filling = 1 if pairs >= FULL_PROGRAMS_PER_SM * num_sms else PROGRAMS_PER_SM * num_sms // pairs
    if batch <= LONE_ROWS and max_context > LONG_ROW:
        smallest, filling = 2 * smallest, max(1, filling // 2)
    useful = triton.next_power_of_2(triton.cdiv(max_context, smallest))
    needed = triton.next_power_of_2(triton.cdiv(max_context, MAX_TOKENS_PER_SPLIT))
    return min(MAX_SPLITS, max(needed, min(_power_of_2_below(filling), useful)))


def _power_of_2_below(number: int) -> int:
    """The largest power of two up to `number`, which is at least one."""
    return 1 << (number.bit_length() - 1)
