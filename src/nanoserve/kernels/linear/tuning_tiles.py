"""The tile of each product of many rows: those of one order of summation, of 8-bit floats and of packed numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

import torch
import triton

from nanoserve.kernels.linear.tuning import JOINING, MULTIPROCESSORS


class InvariantTile(NamedTuple):
    """`bt` rows of x times `bn` rows of the weight, `bk` elements of K at a time; `band` tiles share the weight, and K is in so many slices."""

    bt: int
    bn: int
    bk: int
    band: int
    warps: int
    stages: int
    splits: int = 1


INVARIANT_TILES: Final = (
    (InvariantTile(128, 256, 64, 8, 8, 4), 100),
    (InvariantTile(128, 128, 64, 8, 4, 4), 58),
    (InvariantTile(64, 128, 128, 8, 4, 4), 37),
    (InvariantTile(64, 64, 128, 8, 4, 6), 25),
    (InvariantTile(16, 64, 128, 8, 4, 6), 18),
)
"""Tiles of compute capability 9, and how long a multiprocessor takes for one, relative to the first.

All of them give the same bits there, as the instructions add up K in the same order whatever the tile; an H200 gave them for the 5 products of an 8B,
1 to 256 rows, and `check_invariant_linear` compares them on each device. What is on its way to a multiprocessor counts where rows are few: with 160 KiB instead of 80, 64 rows
of an 8B's products take 4.2 ms a step instead of 5.3, as long as products that are split along K.
"""


def fits_blocks(dtype: torch.dtype, k: int) -> bool:
    """True if products over `k` columns can have blocks that a copy engine fetches, and have the same bits in all tiles.

    In a product of one step the compiler lets the sums of some tiles begin with what is added behind those of others.
    """
    several_steps = k > max(tile.bk for tile, _ in INVARIANT_TILES)
    return several_steps and dtype != torch.float32 and k * dtype.itemsize % 16 == 0


def invariant_tile(dtype: torch.dtype, rows: int, n: int, *, described: bool) -> InvariantTile:
    """The tile for x [rows, K] times a weight [n, K]. Where blocks are not `described`, there is one for all: its 96 KiB of shared memory fit into each device from 8.0 on."""
    if dtype == torch.float32:
        return InvariantTile(64, 64, 32, 8, 4, 2)
    if not described:
        return InvariantTile(128, 128, 64, 8, 8, 3)

    programs = {tile: triton.cdiv(rows, tile.bt) * triton.cdiv(n, tile.bn) for tile, _ in INVARIANT_TILES}
    return min(INVARIANT_TILES, key=lambda each: triton.cdiv(programs[each[0]], MULTIPROCESSORS) * each[1])[0]


@cache
def invariant_rows(dtype: torch.dtype, n: int, most: int, *, described: bool) -> tuple[int, ...]:
    """Numbers of rows up to `most`, one for each tile that some number has."""
    sizes = sorted({*range(16, 64, 16), *range(64, most, 64), most}, reverse=True)
    found = {invariant_tile(dtype, rows, n, described=described): rows for rows in sizes if rows <= most}
    return tuple(sorted(found.values()))


FP8_TILES: Final = (
    (InvariantTile(128, 256, 128, 8, 8, 4), 256),
    (InvariantTile(128, 128, 128, 8, 8, 3), MULTIPROCESSORS),
    (InvariantTile(64, 128, 128, 8, 4, 4), MULTIPROCESSORS),
    (InvariantTile(64, 64, 128, 8, 4, 5), MULTIPROCESSORS + 1),
    (InvariantTile(64, 64, 128, 8, 4, 8), 0),
)
"""Tiles of products of 8-bit floats, and how many of each there have to be at the least; the last, one to a multiprocessor, is for any number of rows.

Times of an H200 with an 8B model's products, one scale for each row of the weight, as shares of bfloat16's by cuBLAS: 57% of 8,192 rows, 53 to 58% of 2,048,
58 to 72% of 256, 60 to 81% of 128. With scales of blocks sums are waited for at every step, so that low tiles are best, several to a multiprocessor:
77 to 84% of 2,048 rows, 78 to 90% of 256.
"""


_PACKED = (128, 64, 128, 8, 4, 3), (256, 64, 64, 8, 4, 3), (64, 64, 128, 8, 4, 4)
PACKED_TILES: Final = tuple(InvariantTile(*each, splits) for each in _PACKED for splits in (1, 2, 4))
"""Tiles of products of packed numbers, by which 4-bit ones take 0.84 of bfloat16's time by cuBLAS for 128 rows with gate and up of an 8B, 1.06 for 256 and 1.3 for 512."""
MOST_PACKED_ROWS = 1024
"""The most rows that these may multiply; to widen the weight first then costs 20 to 26% of the product at so many rows, 11 to 16% at 2,048, and 3 to 9% at 8,192."""
ALONE, BESIDE = {256: 9.8e-3, 128: 5.3e-3, 64: 4.4e-3}, {256: 12.4e-3, 128: 7.2e-3, 64: 5.9e-3}
"""Microseconds of a program of so many rows for each number of K, by itself on its multiprocessor or beside another one."""
WIDENING, READING, FLOPS, LAUNCH = 6.2e-7, 7e-7, 7.7e8, 2.5
"""Microseconds for each number that is widened, and read by a product of halves; how many operations that computes in one; and what one more kernel takes."""


@cache
def fp8_tile(rows: int, n: int, *, blocks: bool) -> InvariantTile:
    """The tile of a product of 8-bit floats, for this many rows with a weight of n, that has scales of blocks or one for each row."""
    tiles = FP8_TILES[2:] if blocks else FP8_TILES
    return next(
        tile for tile, least in tiles if triton.cdiv(rows, tile.bt) * triton.cdiv(n, tile.bn) >= least
    )


def fp8_rows(n: int, *, blocks: bool) -> list[int]:
    """For each of these tiles the fewest rows that have it."""
    tiles = FP8_TILES[2:] if blocks else FP8_TILES
    return [max(1, (triton.cdiv(least, triton.cdiv(n, tile.bn)) - 1) * tile.bt + 1) for tile, least in tiles]


@cache
def packed_tile(rows: int, n: int, k: int) -> InvariantTile:
    """The tile of a product of packed numbers, for this many rows with a weight [n, k], that takes the least time."""
    return min(PACKED_TILES, key=lambda tile: _packed_time(rows, n, k, tile))


def _packed_time(rows: int, n: int, k: int, tile: InvariantTile) -> float:
    """Microseconds of an H200."""
    programs = triton.cdiv(rows, tile.bt) * triton.cdiv(n, tile.bn) * tile.splits
    turns, left = divmod(programs, 2 * MULTIPROCESSORS)
    last = 0.0 if left == 0 else (ALONE if left <= MULTIPROCESSORS else BESIDE)[tile.bt]
    joining = 0.0 if tile.splits == 1 else JOINING + tile.splits * rows * n * 2 / 1e6
    return k / tile.splits * (turns * BESIDE[tile.bt] + last) + joining


@cache
def packed_pays(rows: int, n: int, k: int) -> bool:
    """True if packed numbers [n, k] multiply so many rows in less time than it takes to widen them before a product of halves, by an H200's times of 4-bit ones."""
    rows = triton.cdiv(rows, 64) * 64
    widening = n * k * (WIDENING + max(READING, 2 * rows / FLOPS)) + LAUNCH
    return rows <= MOST_PACKED_ROWS and _packed_time(rows, n, k, packed_tile(rows, n, k)) <= widening


def packed_ways(n: int, k: int) -> list[int]:
    """The fewest rows, in whole tiles, of each way in which packed numbers multiply, and of none."""
    every = range(MOST_PACKED_ROWS + 64, 0, -64)
    return [*{packed_tile(rows, n, k) if packed_pays(rows, n, k) else None: rows for rows in every}.values()]


def packed_scratch(n: int, k: int, way: Callable[[int, int, int], InvariantTile]) -> tuple[int, int]:
    """The most partial sums that such a product leaves if it is cut this `way`, and the most tiles that it leaves them for."""
    partials = tiles = 0
    for rows in range(64, MOST_PACKED_ROWS + 1, 64):
        tile = way(rows, n, k)
        if tile.splits > 1 and packed_pays(rows, n, k):
            count = triton.cdiv(rows, tile.bt) * triton.cdiv(n, tile.bn)
            partials, tiles = max(partials, count * tile.splits * tile.bt * tile.bn), max(tiles, count)
    return partials, tiles
