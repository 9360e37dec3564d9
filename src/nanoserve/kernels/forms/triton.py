"""Reads a weight in any form: a constant FORM chooses, and `plain` is a weight in the model's dtype.

Rows lie one after the other, K / PACK words each, and SCALES scales each. Kernels of one row load all of what they need at once, in chunks of
CHUNK numbers; UNIT of them, which one thread loads, have one scale. Those of more rows load steps of BK.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.forms.fp8 import triton as fp8
from nanoserve.kernels.forms.integers import triton as integers
from nanoserve.kernels.forms.mxfp4 import triton as mxfp4


@triton.jit
def _load_row(
    weight_ptr, scale_ptr, rows, START: tl.constexpr,
    K: tl.constexpr, CHUNK: tl.constexpr, PACK: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr, EVICTION: tl.constexpr,
):  # fmt: skip
    """Words of CHUNK numbers of rows from number START on, and the scale of each UNIT; both are zero past K."""
    words = START // PACK + tl.arange(0, CHUNK // PACK)
    weight_ptrs = weight_ptr + rows[:, None] * (K // PACK) + words[None, :]
    WITHIN: tl.constexpr = START + CHUNK <= K
    if WITHIN:
        weight = tl.load(weight_ptrs, eviction_policy=EVICTION)
    else:
        weight = tl.load(weight_ptrs, mask=words[None, :] < K // PACK, other=0, eviction_policy=EVICTION)
    if scale_ptr is None:
        scales = 1.0
    else:
        # Units come first, so that neighbouring threads have neighbouring ones, as they have of the words.
        units = START // UNIT + tl.arange(0, CHUNK // UNIT)
        scale_ptrs = scale_ptr + rows[None, :] * SCALES + (units * UNIT // GROUP)[:, None]
        if WITHIN:
            scales = tl.trans(tl.load(scale_ptrs))
        else:
            scales = tl.trans(tl.load(scale_ptrs, mask=units[:, None] * UNIT < K, other=0))
    return weight, scales


@triton.jit
def load_rows(
    chunks, weight_ptr, scale_ptr, rows,
    K: tl.constexpr, CHUNK: tl.constexpr, PACK: tl.constexpr, UNIT: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr, EVICTION: tl.constexpr,
    FIRST: tl.constexpr = 0, COUNT: tl.constexpr = 1 << 20,
):  # fmt: skip
    """The tuple `chunks` and behind it all of some rows, which are int64, or COUNT chunks from FIRST on, as far as there are any."""
    for c in tl.static_range(FIRST, min(FIRST + COUNT, (K + CHUNK - 1) // CHUNK)):
        chunk = _load_row(
            weight_ptr, scale_ptr, rows, c * CHUNK, K, CHUNK, PACK, UNIT, GROUP, SCALES, EVICTION
        )
        chunks = chunks + (chunk,)  # noqa: RUF005 - Triton's tuples know no star
    return chunks


@triton.jit
def x_factor(FORM: tl.constexpr):
    """The factor that x has to be multiplied with before `unit_sums`."""
    return mxfp4.X_FACTOR if FORM == "mxfp4" else 1.0


@triton.jit
def unit_sums(row, x, ROWS: tl.constexpr, CHUNK: tl.constexpr, UNIT: tl.constexpr, FORM: tl.constexpr):
    """Sums over each unit, float32 [ROWS, CHUNK / UNIT], of one chunk of rows times x, float32 [CHUNK]."""
    words, scales = row
    if FORM == "mxfp4":
        sums = mxfp4.unit_sums(words, scales, x, ROWS, CHUNK, UNIT)
    elif FORM == "fp8":
        sums = fp8.unit_sums(words, scales, x, ROWS, CHUNK, UNIT)
    elif FORM == "int4" or FORM == "int8":  # noqa: PLR1714 - Triton has no `in`
        sums = integers.unit_sums(words, scales, x, ROWS, CHUNK, UNIT, FORM)
    else:
        tl.static_assert(FORM == "plain")
        sums = words.to(tl.float32) * x[None, :]
    return sums


@triton.jit
def load_step_scales(
    ptrs, k, K: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr, FORM: tl.constexpr
):
    """The scales of the numbers of rows from k on, for `step`; `ptrs` [ROWS] are where those of rows begin."""
    if FORM == "mxfp4":
        scales = mxfp4.load_step_scales(ptrs, k, K, BK, GROUP, SCALES)
    elif FORM == "int4" or FORM == "int8":  # noqa: PLR1714 - as above
        scales = integers.load_step_scales(ptrs, k, K, BK, GROUP, SCALES)
    else:
        scales = fp8.load_step_scales(ptrs, k, K, GROUP)
    return scales


@triton.jit
def step(
    words, scales, DTYPE: tl.constexpr, WHOLE: tl.constexpr, GROUP: tl.constexpr, FORM: tl.constexpr, PAIRS: tl.constexpr
):  # fmt: skip
    """The numbers [ROWS, BK] of words [ROWS, BK / PACK] in DTYPE, and the factors that they still want, unless WHOLE.

    With PAIRS, DTYPE is bfloat16 and two of it are multiplied by one instruction (compute capability 9.0 and newer).
    """
    if FORM == "mxfp4":
        wide, factors = mxfp4.step(words, scales, DTYPE, WHOLE, PAIRS)
    elif FORM == "int4" or FORM == "int8":  # noqa: PLR1714 - as above
        wide, factors = integers.step(words, scales, DTYPE, WHOLE, GROUP, FORM, PAIRS)
    else:
        wide, factors = fp8.step(words, scales, DTYPE, WHOLE)
    return wide, factors


@triton.jit
def add_left(sums, words, scales, x, GROUP: tl.constexpr, FORM: tl.constexpr, PAIRS: tl.constexpr):
    """Sums [ROWS, M] plus the product of one step of the weight, as the left factor, and x [BK, M].

    Tensor cores still read the registers of a left factor while what follows already writes the next one there, unless it waits for the
    result: that a stored weight's product is added outside makes it wait.
    """
    if FORM == "plain":
        sums = tl.dot(words, x, sums, input_precision="ieee")
    else:
        wide, factors = step(words, scales, x.dtype, False, GROUP, FORM, PAIRS)
        sums += tl.dot(wide, x, input_precision="ieee") * factors
    return sums


@triton.jit
def add_right(sums, x, words, scales, GROUP: tl.constexpr, FORM: tl.constexpr, PAIRS: tl.constexpr):
    """Sums [M, ROWS] plus the product of x [M, BK] and one step of the weight, which goes through shared memory, so that nothing has to wait."""
    wide, _ = step(words, scales, x.dtype, True, GROUP, FORM, PAIRS)
    return tl.dot(x, tl.trans(wide), sums, input_precision="ieee")


@triton.jit
def fragment_rows(i, WARPS: tl.constexpr):
    """Which of 16 WARPS rows the i-th is in the order in which `fragments` wants them loaded."""
    return (i // 8 % WARPS) * 16 + i // (8 * WARPS) * 8 + i % 8


@triton.jit
def fragments(
    words, scales, DTYPE: tl.constexpr, FORM: tl.constexpr, PAIRS: tl.constexpr, WIDE: tl.constexpr
):
    """Numbers of int32 words [ROWS, 16], as a left factor that needs no exchange between threads; unscaled.

    In a left factor of 16 x 16 numbers thread t of four, of row r of eight, holds pairs at 2 t and 2 t + 8 of rows r and r + 8. Which columns these
    stand for is free, if those of x lie alike (`in_fragment_order`). So each thread loads 16 bytes of a row at once, as four threads do for a row
    and a warp for eight, and what it finds in them becomes its pairs: rows come as `fragment_rows` says, and the rest is a matter of names.
    Triton hands pairs out by 2 t where four warps share an instruction, which is WIDE, and by 4 t where each has its own.
    """
    if FORM == "int4":
        wide = integers.fragments(words, scales, DTYPE, PAIRS, WIDE)
    else:
        tl.static_assert(FORM == "fp8")
        wide = fp8.fragments(words, DTYPE, PAIRS, WIDE)
    return wide


@triton.jit
def in_fragment_order(x, FORM: tl.constexpr, WIDE: tl.constexpr):
    """Columns of x [M, chunks of 16 words] in the order that `fragments` gives those of the weight."""
    return integers.in_fragment_order(x, WIDE) if FORM == "int4" else fp8.in_fragment_order(x, WIDE)


@triton.jit
def factors(scales, FORM: tl.constexpr):
    """The factors of products with `fragments`."""
    return integers.scale_of(scales) if FORM == "int4" else scales


@triton.jit
def row_fragments(words, DTYPE: tl.constexpr, FORM: tl.constexpr):
    """Numbers of int32 words [16 WARPS, 16], as a left factor [WARPS, 16, 16 PACK] that needs no exchange between threads.

    In a left factor of 16 x 16 numbers thread t of four, of row r of eight, holds pairs at 4 t and 4 t + 2 of rows r and r + 8. Which columns these
    stand for is free, if those of x lie alike (`right_factor`). So each thread loads 16 bytes of a row at once, as four threads do for a row and a warp for
    eight, and what it finds in them becomes its pairs; the i-th row of words is row i // 8 WARPS * 8 + i % 8 of warp i // 8 % WARPS, and the rest is a matter of names.

    Bits are put where DTYPE, which is half precision, has them, and what that makes of them is undone by the factors of x (`raised`) and of sums (`scaled`):
    that takes a third of the instructions of making numbers of the right size.
    """
    if FORM == "int4":
        wide = integers.row_fragments(words, DTYPE)
    else:
        tl.static_assert(FORM == "fp8")
        wide = fp8.row_fragments(words, DTYPE)
    return wide


@triton.jit
def right_factor(pieces, FORM: tl.constexpr):
    """The right factor [WARPS, 16 PACK, COLUMNS] of pieces of x [4, COLUMNS, WARPS, 8]: the four threads' numbers, 8 of each in every one."""
    return integers.right_factor(pieces) if FORM == "int4" else fp8.right_factor(pieces)


@triton.jit
def raised(DTYPE: tl.constexpr, FORM: tl.constexpr, PIECE: tl.constexpr):
    """The factor of a piece of x: bfloat16 may be as small as weights are, so that sums need x to be large; every other piece meets 16 times the number."""
    up = 2.0**64 if tl.bfloat16 == DTYPE else 1.0
    return up / 16 if FORM == "int4" and PIECE % 2 == 1 else up


@triton.jit
def scaled(sums, sums_of_x, scales, DTYPE: tl.constexpr, FORM: tl.constexpr):
    """Products of `row_fragments` and raised x, as they are; `sums_of_x` are those of ones, as `row_fragments` have them, and x."""
    if FORM == "int4":
        down = 2.0**69 if tl.bfloat16 == DTYPE else 2.0**24
        sums = (sums - (scales & 255).to(tl.float32) * sums_of_x) * (integers.scale_of(scales) * down)
    else:
        sums *= scales * (2.0**56 if tl.bfloat16 == DTYPE else 2.0**8)
    return sums
