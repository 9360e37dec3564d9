"""The tile of each product: the best measured ones of an H200, and rules that extend them to other shapes.

Measured with forerunners of these kernels; bfloat16, in chains of kernels with programmatic dependent launch, weights not in the L2
cache; in percent of the 4.62 TB/s that the device can read:

| product (N x K)          | M = 1                 | M = 16                      |
|--------------------------|-----------------------|-----------------------------|
| qkv 3072 x 2048          | 2 rows, 1-2 warps 69% | 64 x 512, 4 splits          |
| o 2048 x 2048            | 2 rows, 2 warps 61%   | 64 x 512, 4 splits 46%      |
| gate and up 16384 x 2048 | 4 rows, 4-8 warps 89% | 64 x 128, 4 stages 83%      |
| down 2048 x 8192         | 4 rows, 8 warps 75%   | 64 x 128, 4 to 8 splits 61% |
| head 128256 x 2048       | 2 rows, 4 warps 97%   | 64 x 128, 4 stages 91%      |

One row of x is best served by one row of the weight in `down` (82%), but in a whole decode step by four.
What carries over is how many bytes a thread has in flight, and that about one tile per multiprocessor is needed to keep
all of them reading. Slices and steps in flight of the skinny products come from a cost that was fitted to 36 products of 3B, 8B and 14B
models at 8, 32 and 64 rows (2,500 tiles measured). Everything here is a function of shapes and dtypes, so that a product has the same
configuration, and the same bits, whenever it runs at the same M.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import triton

from nanoserve.kernels.forms import PLAIN, Form

MAX_SKINNY_M = 128
"""The most rows of x that fit into one tile of the skinny products."""
WIDE = 32_768
"""From this many columns on a product is like a head: so many tiles that none needs to be split."""
BUSY = 128
"""The number of programs that keep a device reading; H100 and H200 have 132 multiprocessors, A100 has 108."""
MULTIPROCESSORS = 132
"""Multiprocessors of an H100 or H200."""
ROOM = 225 * 1024
"""Bytes of shared memory of one of them."""
READ, LATENCY = 4.0e6, 2.4
"""Bytes that an H200 reads in a microsecond, and the microseconds for which it must have so many in flight."""
FETCHED = 55e3
"""Bytes that the copy engine brings to one of its multiprocessors in a microsecond."""
JOINING = 2.5
"""Microseconds that the last program of a tile needs to add up the slices."""
WHOLE = (256, 512)
"""Slices that up to 32 rows of x multiply in one step."""
MOST_REGISTERS = 128
"""The most registers of a thread of products whose words go straight into registers in many steps, so that four programs are beside each other: INT4's down takes 15.4 us for 8 rows, not 22.6. Gates of 9 to 16 rows want more: 1.9% of an 8B's step in FP8."""
LEAST_STRAIGHT = 48 << 20
"""Numbers of a stored weight from which on words go straight into registers for one row, too, a third of them in 4-bit ones: in INT4 an 8B's o and qkv save 64 us of a step's 1,763 then, a 1B's down 24 of 510; in FP8 an 8B's qkv lose 55 of 2,437."""
MOST_STRAIGHT_ROWS = 16
"""Rows of x up to which words of a stored weight go straight into registers."""
FEWER = 1
"""Steps in flight that a product of 64 rows leaves out, so that beside it both kernels of adapters fit into a multiprocessor."""
AHEAD = 4
"""The number of steps of a slice that are fetched to the L2 cache before the wait, if kernels overlap."""


class RowTile(NamedTuple):
    """One row of x times `rows` rows of the weight by `warps` warps, K in pieces of `chunk`, a power of two, of which `depth` are in flight."""

    rows: int
    warps: int
    chunk: int
    depth: int = 64
    straight: bool = False  # words of a stored weight go straight into registers (`straight/triton.py`)


@cache
def row_tile(n: int, k: int, bits: int, *, gate: bool, form: Form = PLAIN) -> RowTile:
    """The tile of a product of one row of x with weight [n, k], of this many bits each; `form` is of the weight where x is of half precision."""
    chunk = _chunk(k)
    least = LEAST_STRAIGHT // 3 if bits == 4 else LEAST_STRAIGHT
    if form.straight and n * k >= least and (warps := straight_warps(k, form)):
        return RowTile(16, warps[0], form.chunk, straight=True)
    # Of packed numbers few pieces in flight leave registers for more programs beside each other: down of an 8B takes 12.5 us, with all of them 16.7.
    if bits == 4:
        return RowTile(16, 4, 1024, 2) if chunk == k > 1024 and n > 32 * BUSY else RowTile(8, 4, chunk, 1)
    if bits <= 8:
        return RowTile(4 if chunk < k or (bits == 8 and n <= 8192 and not gate) else 8, 4, chunk)
    if bits == 16 and not gate and chunk == k <= min(4096, 2 * n) and 8 << 20 <= n * k < WIDE * k:
        return RowTile(4, 4, 1024)  # one row of an 8B: qkv takes 1.6 us less, o 1.1
    many_chunks = chunk == 512 and k > 2048
    if many_chunks and not gate and n < WIDE and k <= 2 * n:
        rows, bytes_per_thread, most = 4, 320, 32_768
    elif gate or (n >= WIDE and chunk < k):
        rows, bytes_per_thread, most = 4, 192, 16_384 if gate and many_chunks else 32_768
    elif k > 2 * n:
        rows, bytes_per_thread, most = 4, 256, 65_536
    else:
        rows, bytes_per_thread, most = 2, 64 if n >= WIDE else 128, 0
    while rows > 2 and rows * k * bits // 8 > most:
        rows //= 2
    wanted = triton.next_power_of_2(triton.cdiv(rows * k * bits, 8 * 32 * bytes_per_thread))
    # Two wide loads of each chunk for each thread, or one if a thread's registers would not hold all chunks.
    useful = rows * chunk * bits // (8 * 32 * 32)
    if rows * k * bits > useful * 8 * 32 * 256:
        useful *= 2
    return RowTile(rows, min(8, wanted, max(1, useful)), chunk)


def straight_warps(k: int, form: Form) -> list[int]:
    """The numbers of warps that divide so many columns in a form, in whole chunks, at least four each, the one with the fewest steps of eight first. Two steps of five instead of one cost 6% of a 14B's step in INT4."""
    chunks = 0 if k % form.chunk else k // form.chunk
    could = [warps for warps in (2, 4, 8) if chunks % warps == 0 and chunks // warps >= 4]
    return sorted(could, key=lambda warps: triton.cdiv(chunks, 8 * warps))


def _chunk(k: int) -> int:
    """All of k if it is a power of two, else the largest one from 512 to 2048 that divides it, else with a rest."""
    if k == triton.next_power_of_2(k):
        return k
    dividing = k & -k
    return min(2048, dividing if dividing >= 512 else triton.next_power_of_2(k))


class SkinnyTile(NamedTuple):
    """Up to `bm` rows of x times `bn` rows of the weight, `bk` elements of K at a time, K in `splits` slices."""

    bm: int
    bn: int
    bk: int
    splits: int
    stages: int
    ahead: int
    eviction: str
    warps: int = 4
    """One instruction of Hopper's tensor cores takes four; fewer use instructions that wait for no other warp."""
    straight: bool = False
    """True if words of a stored weight go straight into registers (`straight.py`)."""


def padded(m: int) -> int:
    """The bucket of M: the rows of the tile that m rows of x are padded to."""
    return max(16, triton.next_power_of_2(m))


@cache
def split_count(m: int, n: int, k: int, *, form: Form = PLAIN) -> int:
    """The slices into which `split_linear` cuts K for m rows of x and weight [n, k] in a form: 1 to 8, one per bucket of m."""
    if form.straight and m <= MOST_STRAIGHT_ROWS and (straight := _straight_splits(n, k)):
        return straight
    if form is not PLAIN:
        return _doubled(n, k, 4 * BUSY if m <= 32 and k > 2 * n else 2 * BUSY)
    return _copied_slices(padded(m), n, k)


def _straight_splits(n: int, k: int) -> int:
    """The slices of a product whose words go straight into registers: 8 or fewer of whole steps of 256; 0 if that makes too few programs."""
    splits = next((each for each in (8, 4, 2, 1) if k % (256 * each) == 0), 0)
    return splits if triton.cdiv(n, 64) * splits >= 2 * BUSY else 0


def _doubled(n: int, k: int, goal: int) -> int:
    """The fewest slices, a power of two, that make `goal` programs of 64 rows, none shorter than 256."""
    slices = 1
    while slices < 8 and triton.cdiv(n, 64) * slices < goal and k >= 512 * slices:
        slices *= 2
    return slices


def _copied_slices(bm: int, n: int, k: int) -> int:
    """The cheapest number of slices of a product whose weight the copy engine fetches, one program to a multiprocessor."""

    def cost(splits: int) -> float:
        """Microseconds of an H200: all reads or those of the busiest multiprocessor, the beginnings of its programs, and partial sums."""
        rounds = triton.cdiv(triton.cdiv(n, 64) * splits, MULTIPROCESSORS)
        slice_ = triton.cdiv(k, 128 * splits) * 128
        return max(n * k * 2 / READ, rounds * 64 * slice_ * 2 / FETCHED) + rounds + splits * bm * n * 4 / 1e6

    return min((each for each in range(1, 9) if k >= 256 * each), key=cost, default=1)


def _slices(bm: int, n: int, k: int) -> int:
    """The cheapest number of slices of a product that adds them up itself.

    Slices of one step come first: they cost no loop.
    """
    doubled = _doubled(n, k, BUSY)
    if bm <= 32 and k // doubled in WHOLE:
        return doubled

    def cost(splits: int) -> float:
        """Microseconds of an H200: the reads of the busiest multiprocessor, and partial sums; on average 1.4% and at most 7% above the best measured tiles."""
        rounds = triton.cdiv(triton.cdiv(n, 64) * splits, MULTIPROCESSORS)
        slice_ = triton.cdiv(k, 128 * splits) * 128
        programs = min(rounds, 4)
        stages = min(8, ROOM // (programs * (64 + bm) * 128 * 2))
        flying = programs * max(1, stages - 1) * 64 * 128 * 2
        reading = rounds * 64 * slice_ * 2 / min(READ / MULTIPROCESSORS, flying / LATENCY)
        return reading + splits * bm * n * 4 / 1e6 + (JOINING if splits > 1 else 0.0)

    return min((each for each in range(1, 9) if k >= 256 * each), key=cost, default=1)


@cache
def skinny_tile(
    m: int, n: int, k: int, itemsize: int, *, gate: bool, splits: int | None, room: int, form: Form = PLAIN
) -> SkinnyTile:
    """The tile of a product of m rows of x with weight [n, k].

    Args:
        m: 1 to 128; one tile per bucket.
        n: rows of the weight.
        k: columns of the weight.
        itemsize: bytes per element of x.
        gate: whether the rows are those of a gate and an up projection.
        splits: the slices of K if the caller has said how many, else None.
        room: bytes of shared memory that a program may have.
        form: of the weight.
    """
    bm = padded(m)
    packed = form.per_word > 1
    straight = _straight_splits(n, k) if form.straight and m <= MOST_STRAIGHT_ROWS and itemsize == 2 else 0
    if straight and gate and not packed:  # so many tiles that few slices keep a device reading
        straight = min(straight, _doubled(n, k, 3 * BUSY if m <= 8 else 4 * BUSY))
    if straight and splits in (None, straight):
        whole, few = form.straight > 64 and k == 512 * straight, m <= 8
        if few and (k > 512 * straight or (whole and not gate)):
            # By warps that wait for no other one: an 8B's gate and up in 8-bit floats save 0.72 ms of 3.52 a step. What is one step is best cut into many programs.
            bn, bk, warps = (32, 512, 2) if whole else (64, 256, 4)
            return SkinnyTile(8, bn, bk, straight, 1, 0, "evict_first", warps, straight=True)
        return SkinnyTile(16, 64, 512 if whole else 256, straight, 1, 0, "evict_first", straight=True)
    if form is not PLAIN:
        if splits is None:
            splits = _doubled(n, k, BUSY) if n < WIDE and not gate else 1
        bm = 8 if m <= 8 and not packed else bm
        tile = _stored_tile(bm, n, itemsize, gate=gate, splits=splits, room=room, per_word=form.per_word)
        # Of 33 to 64 rows packed numbers of a step are sent for before the wait: 1.7% of an 8B's step in INT4; 32 rows lose 0.8%.
        early = packed and bm == 64 and itemsize == 2 and k % (tile.bk * splits) == 0
        return tile._replace(ahead=int(early))
    if splits is None:
        splits = _slices(bm, n, k) if bm <= 64 and n < WIDE and not gate else 1
    bn, bk, stages = _shape(bm, n, k // splits, splits, itemsize, gate=gate)
    if itemsize == 4:
        bk = min(bk, 32)
    whole = bk == k // splits and k % splits == 0
    bytes_per_stage = (bn + bm) * bk * itemsize
    stages = 1 if whole else max(1, min(stages, room // bytes_per_stage))
    ahead = AHEAD if itemsize < 4 and k % (bk * splits) == 0 else 0
    ahead = min(ahead, k // (bk * splits))
    return SkinnyTile(bm, bn, bk, splits, stages, ahead, "evict_first" if n >= WIDE else "")


class CopiedTile(NamedTuple):
    """`bm` rows of x times `bn` rows of the weight, `bk` elements of K a step, by the copy engine with room for `stages` steps."""

    bm: int
    bn: int
    bk: int
    stages: int


@cache
def copied_tile(
    m: int, n: int, k: int, sizes: tuple[int, int, int], *, gate: bool, splits: int, room: int, taken: int
) -> CopiedTile | None:
    """The tile of a product for which the copy engine fetches, with so much `room`, of which kernels beside it have `taken` while it begins; `sizes` are the bytes of numbers of the weight and of x, and how many share a scale.

    None for a head, for few programs, of halves in one slice for up to 32 rows, since what comes next begins beside a smaller program, and of weights that are widened for other rows than 9 to 16, or for these in one slice without a gate.
    """
    (w_bytes, x_bytes, group), bm, bn, bk, most = sizes, padded(m), 64, 128, 4
    if w_bytes == 2:
        (bn, bk), most = ((128, 64), 3) if gate else ((64, 128), 1)
        served = bm > 32 or splits > 1
    elif x_bytes == 2:
        served = 8 < m <= 16 and (gate or splits > 1)
    else:
        served, bn = bm <= 64, 128 if triton.cdiv(n, 128) >= 0.9 * MULTIPROCESSORS else 64
    programs = triton.cdiv(n, bn) * splits
    if not served or bm > MAX_SKINNY_M or n >= WIDE or k % 128 or n % 16 or programs < MULTIPROCESSORS // 3:
        return None
    # A multiprocessor's memory for one program, or for as many of a gate or of 8-bit floats as let all of them begin at once.
    step = (bn * w_bytes + bm * x_bytes) * bk
    beside = min(most, room // (3 * step), triton.cdiv(programs, MULTIPROCESSORS))
    stages = min(16, room // (beside * step), (room - taken) // step)
    # Rounded rows want long steps, unless these have a scale each.
    longer = 2 if x_bytes == 1 and group >= k and k % 256 == 0 and stages >= 4 else 1
    return CopiedTile(bm, bn, longer * bk, stages // longer)


def _stored_tile(
    bm: int, n: int, itemsize: int, *, gate: bool, splits: int, room: int, per_word: int
) -> SkinnyTile:
    """The tile of a product with a stored weight, whose steps are long enough for whole lines of its words.

    Measured on an H200 with 8-bit floats and 4-bit integers of an 8B model. Numbers of a byte are multiplied fastest by warps that do not wait for
    one another, in tiles as narrow as x allows; packed ones lie as the instructions want them that four warps share.
    """
    if itemsize == 4:
        return SkinnyTile(max(bm, 16), 32, 32, splits, 2, 0, "")
    packed = per_word > 1
    few = triton.cdiv(n, 64) * splits <= 2 * BUSY
    warps, bn, bk, stages = 4, 64, 256 if per_word > 4 or (packed and few and bm <= 32) else 128, 3
    if bm <= 16 and not packed:
        warps, bn, stages = 2, 32, 3 if bm == 8 else 4
    elif bm == 128:
        bk = 64
    elif bm == 64 and (gate or n >= WIDE):
        bn, bk = 128, 128
    elif (bm == 64 and not packed) or (bm == 16 and few):
        stages = 4  # few programs for each multiprocessor, or long steps of x
    bytes_per_stage = (bn + bm * itemsize) * bk
    return SkinnyTile(bm, bn, bk, splits, max(1, min(stages, room // bytes_per_stage)), 0, "", warps)


def _shape(bm: int, n: int, slice_: int, splits: int, itemsize: int, *, gate: bool) -> tuple[int, int, int]:
    """Rows of the weight and elements of K per step, and how many steps are in flight."""
    if itemsize == 4:  # without tensor cores: small tiles, which compile quickly
        return 32, 32, 2
    if bm <= 32 and slice_ in WHOLE:
        return 64, slice_, 1
    if bm == 128 or (bm == 64 and n >= WIDE):
        return 64, 64, 6
    programs = triton.cdiv(n, 64) * splits
    if gate or n >= WIDE:
        # As many side by side as leave the fewest turns to the busiest multiprocessor.
        beside = min((2, 3, 1), key=lambda each: triton.cdiv(programs, MULTIPROCESSORS * each) * each)
        return 64, 128, {1: 8, 2: 4, 3: 3}[beside]
    beside = min(3, triton.cdiv(programs, MULTIPROCESSORS))
    return 64, 128, min(8 if bm == 16 else 5, ROOM // (beside * (64 + bm) * 128 * itemsize))
