"""Integers of 4 and 8 bits in kernels.

A number is put into the lowest bits of a float's mantissa, whose exponent makes it 128 + q, two at a time in bfloat16, or 2 ** 23 + q. What is
subtracted from it is exact, and so is the difference.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.tiles import halves, in_row_order

_NIBBLES = tl.constexpr(0x000F000F)
_BASE = tl.constexpr(0x43004300)
"""128 as bfloat16, twice."""
_UPPER = tl.constexpr(-0x10000)  # 0xFFFF0000
_BYTE = tl.constexpr(0x4B000000)
"""2 ** 23 as float32."""


@triton.jit
def _pairs(words, FIRST: tl.constexpr):
    """128 plus numbers FIRST and FIRST + 4 of each word, as bfloat16 in its halves."""
    return ((words >> 4 * FIRST) & _NIBBLES) | _BASE


@triton.jit
def _pair(words, FIRST: tl.constexpr):
    """Both as float32, in a further dimension."""
    pairs = _pairs(words, FIRST)
    return tl.join((pairs << 16).to(tl.float32, bitcast=True), (pairs & _UPPER).to(tl.float32, bitcast=True))


@triton.jit
def _unpacked(words, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """128 plus the eight numbers of each word [ROWS, WORDS], float32 [ROWS, 8 WORDS]."""
    groups = tl.reshape(words, [ROWS, WORDS // 4, 4])
    return in_row_order(_pair(groups, 0), _pair(groups, 1), _pair(groups, 2), _pair(groups, 3), ROWS, WORDS)


@triton.jit
def scale_of(words):
    """The scale that a group's word has."""
    bits = words.to(tl.int32) if words.dtype == tl.int64 else words & -256
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _minimum_of(words):
    """The minimum that a group's word of 64 bits has; zero of others."""
    return (words >> 32).to(tl.int32).to(tl.float32, bitcast=True) if words.dtype == tl.int64 else 0.0


@triton.jit
def _byte_pair(words, SECOND: tl.constexpr):
    """2 ** 23 plus the first and third byte of each word, or the second and fourth, as float32 in a further dimension."""
    first = words >> 8 if SECOND else words
    third = first >> 16
    return tl.join(
        (first & 255 | _BYTE).to(tl.float32, bitcast=True), (third & 255 | _BYTE).to(tl.float32, bitcast=True)
    )


@triton.jit
def _bytes_in_order(first, second, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Pairs [ROWS, WORDS / 4, 4, 2] of each word as numbers [ROWS, 4 WORDS] (see `Int8`)."""
    return tl.reshape(tl.permute(tl.join(first, second), [0, 1, 4, 2, 3]), [ROWS, 4 * WORDS])


@triton.jit
def _widened(words, ROWS: tl.constexpr, COUNT: tl.constexpr, FORM: tl.constexpr):
    """Numbers [ROWS, COUNT], float32, and how much too large they are."""
    if FORM == "int4":
        wide, base = _unpacked(words, ROWS, COUNT // 8), 128.0
    else:
        groups = tl.reshape(words, [ROWS, COUNT // 16, 4])
        wide, base = (
            _bytes_in_order(_byte_pair(groups, False), _byte_pair(groups, True), ROWS, COUNT // 4),
            8388608.0,
        )
    return wide, base


@triton.jit
def unit_sums(
    words, scales, x, ROWS: tl.constexpr, CHUNK: tl.constexpr, UNIT: tl.constexpr, FORM: tl.constexpr
):
    """See `forms.triton.unit_sums`."""
    UNITS: tl.constexpr = CHUNK // UNIT
    MINIMUM: tl.constexpr = scales.dtype == tl.int64
    if FORM == "int4":
        wide = in_row_order(
            *(_tiny_pair(words, 0), _tiny_pair(words, 1)), *(_tiny_pair(words, 2), _tiny_pair(words, 3)),
            ROWS, CHUNK // 8,
        )  # fmt: skip
    else:
        groups = tl.reshape(words, [ROWS, CHUNK // 16, 4])
        wide = _bytes_in_order(_tiny_bytes(groups), _tiny_bytes(groups >> 8), ROWS, CHUNK // 4)
    products = wide * (x * _up(CHUNK, FORM))[None, :]
    sums = tl.sum(tl.reshape(products, [ROWS, UNITS, UNIT]), 2)
    if not MINIMUM:
        sums -= _tiny(scales & 255) * (tl.sum(tl.reshape(x, [UNITS, UNIT]), 1) * 2.0**64)[None, :]
    sums *= 2.0**85
    sums *= scale_of(scales)
    if MINIMUM:
        sums -= _minimum_of(scales) * tl.sum(tl.reshape(x, [UNITS, UNIT]), 1)[None, :]
    return sums


@triton.jit
def _tiny(integers):
    """Integers below 2 ** 24 times 2 ** -149, which is what their bits are as float32: a subnormal one, which is multiplied as fast as others."""
    return integers.to(tl.float32, bitcast=True)


@triton.jit
def _tiny_pair(words, FIRST: tl.constexpr):
    """Numbers FIRST and FIRST + 4 of each word where they lie in its lower 24 bits, or eight places lower, in a further dimension."""
    groups = tl.reshape(words, [words.shape[0], words.shape[1] // 4, 4])
    second = groups >> 8 if FIRST > 1 else groups
    return tl.join(_tiny(groups & (15 << 4 * FIRST)), _tiny(second & (15 << 16 + FIRST % 2 * 4)))


@triton.jit
def _tiny_bytes(words):
    """The first and third byte of each word where they lie, in a further dimension."""
    return tl.join(_tiny(words & 0xFF), _tiny(words & 0xFF0000))


@triton.jit
def _up(CHUNK: tl.constexpr, FORM: tl.constexpr):
    """2 ** 64 divided by what the place of each number of a chunk makes of it in `_tiny_pair` or `_tiny_bytes`."""
    i = tl.arange(0, CHUNK)  # see `layout.gathered`
    of_nibbles = i // 8 % 2 * 4 + tl.where(i % 2 == 0, i // 16 % 2 * 8, 16)
    places = of_nibbles if FORM == "int4" else i % 2 * 16
    return ((127 + 64 - places) << 23).to(tl.float32, bitcast=True)


@triton.jit
def load_step_scales(ptrs, k, K: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr):
    """The words of each row from number k on, [ROWS, groups of a step]."""
    if BK > GROUP:
        words = tl.minimum(tl.arange(0, BK // GROUP) + k // GROUP, SCALES - 1)
        scales = tl.load(ptrs[:, None] + words[None, :])
    else:
        scales = tl.load(ptrs + tl.minimum(k, K - 1) // GROUP)[:, None]
    return scales


@triton.jit
def step(
    words, scales, DTYPE: tl.constexpr, WHOLE: tl.constexpr, GROUP: tl.constexpr, FORM: tl.constexpr, PAIRS: tl.constexpr
):  # fmt: skip
    """See `forms.triton.step`; what is scaled and not WHOLE is twice as large: a factor of one would be left out."""
    ROWS: tl.constexpr = words.shape[0]
    BK: tl.constexpr = words.shape[1] * (8 if FORM == "int4" else 4)
    GROUPS: tl.constexpr = BK // GROUP if BK > GROUP else 1
    MINIMUM: tl.constexpr = scales.dtype == tl.int64
    SCALED: tl.constexpr = WHOLE or GROUPS > 1 or MINIMUM
    factors = scale_of(scales)
    inner = factors if WHOLE else factors * 2.0
    minima = _minimum_of(scales) * (1.0 if WHOLE else 2.0)
    zeros = (scales & 255).to(tl.int32)
    if PAIRS:
        wide = _pairs_in_order(words, zeros, inner, minima, BK, GROUPS, FORM, SCALED, MINIMUM)
    else:
        wide, base = _widened(words, ROWS, BK, FORM)
        wide = tl.reshape(wide, [ROWS, GROUPS, BK // GROUPS])
        if MINIMUM:
            wide = (wide - base) * inner[:, :, None] - minima[:, :, None]
        else:
            wide -= (zeros.to(tl.float32) + base)[:, :, None]
            if SCALED:
                wide *= inner[:, :, None]
        wide = tl.reshape(wide, [ROWS, BK]).to(DTYPE)
    return wide, 0.5 if SCALED else factors


@triton.jit
def _pairs_in_order(
    words, zeros, factors, minima,
    BK: tl.constexpr, GROUPS: tl.constexpr, FORM: tl.constexpr, SCALED: tl.constexpr, MINIMUM: tl.constexpr,
):  # fmt: skip
    """The numbers of words as bfloat16, less the zero points of their groups, or times factors less minima."""
    ROWS: tl.constexpr = words.shape[0]
    FOUR: tl.constexpr = 32 if FORM == "int4" else 16
    grouped = tl.reshape(words, [ROWS, BK // FOUR, 4])
    by = _of_words(_twice(factors), ROWS, BK, GROUPS, FOUR) if SCALED else 0
    less = _of_words(_twice(-minima), ROWS, BK, GROUPS, FOUR) if MINIMUM else 0
    if MINIMUM:
        bases = _BASE
    elif FORM == "int4":
        bases = _of_words(zeros * 0x10001 | _BASE, ROWS, BK, GROUPS, FOUR)
    else:
        bases = _of_words(_twice(zeros.to(tl.float32) - 128.0), ROWS, BK, GROUPS, FOUR)
    first = _number_pair(grouped, bases, by, less, 0, FORM, SCALED, MINIMUM)
    second = _number_pair(grouped, bases, by, less, 1, FORM, SCALED, MINIMUM)
    if FORM == "int4":
        third = _number_pair(grouped, bases, by, less, 2, FORM, SCALED, MINIMUM)
        fourth = _number_pair(grouped, bases, by, less, 3, FORM, SCALED, MINIMUM)
        wide = in_row_order(first, second, third, fourth, ROWS, BK // 8)
    else:
        wide = _bytes_in_order(first, second, ROWS, BK // 4)
    return wide


@triton.jit
def _twice(each):
    """Float32 as bfloat16, twice in a word."""
    return (each.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF) * 0x10001


@triton.jit
def _of_words(each, ROWS: tl.constexpr, BK: tl.constexpr, GROUPS: tl.constexpr, FOUR: tl.constexpr):
    """The word of each group [ROWS, GROUPS], for each word [ROWS, BK / FOUR, 4]; four of these have FOUR numbers."""
    SHARE: tl.constexpr = BK // FOUR // GROUPS
    spread = tl.broadcast_to(each[:, :, None], [ROWS, GROUPS, 4 * SHARE])
    return tl.reshape(spread, [ROWS, BK // FOUR, 4])


@triton.jit
def _number_pair(
    words, bases, factors, less, FIRST: tl.constexpr,
    FORM: tl.constexpr, SCALED: tl.constexpr, MINIMUM: tl.constexpr,
):  # fmt: skip
    """Numbers FIRST and FIRST + 4 of each word, or bytes FIRST and FIRST + 2, less `bases`, times factors, plus `less`, as bfloat16 in a further dimension.

    All but the words are bfloat16 that a word has twice. Numbers of 4 bits are made 128 larger, as by `_pairs`, and bases have these, too. A mantissa
    has but seven bits: the eighth of a byte chooses which of 128 and 256 is taken off, so that 128 less is made.
    """
    if FORM == "int4":
        pairs = tl.inline_asm_elementwise(
            "{ .reg .b32 t; lop3.b32 t, $1, 0x000F000F, 0x43004300, 0xEA; sub.rn.bf16x2 $0, t, $2; }", "=r,r,r",
            [words >> 4 * FIRST, bases],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        pairs = tl.inline_asm_elementwise(
            "{ .reg .b32 t, u; lop3.b32 t, $1, 0x007F007F, 0x43004300, 0xEA; lop3.b32 u, $1, 0x00800080, 0x43804380, 0x6A; "
            "sub.rn.bf16x2 t, t, u; sub.rn.bf16x2 $0, t, $2; }", "=r,r,r",
            [words >> 8 * FIRST, bases],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    if MINIMUM:
        pairs = tl.inline_asm_elementwise(
            "fma.rn.bf16x2 $0, $1, $2, $3;", "=r,r,r,r", [pairs, factors, less], tl.int32, is_pure=True, pack=1
        )  # fmt: skip
    elif SCALED:
        pairs = tl.inline_asm_elementwise(
            "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [pairs, factors], tl.int32, is_pure=True, pack=1
        )
    return halves(pairs)


@triton.jit
def fragments(words, scales, DTYPE: tl.constexpr, PAIRS: tl.constexpr, WIDE: tl.constexpr):
    """See `forms.triton.fragments`; 128 numbers of 4 bits of each row, those of thread t behind 32 t."""
    WARPS: tl.constexpr = words.shape[0] // 16
    four = tl.reshape(words, [2, WARPS, 8, 4, 4])
    zeros = tl.broadcast_to(tl.reshape(scales & 255, [2, WARPS, 8, 1, 1]), four.shape)
    if PAIRS:
        bases = zeros * 0x10001 | _BASE
        first = _number_pair(four, bases, 0, 0, 0, "int4", False, False)
        second = _number_pair(four, bases, 0, 0, 1, "int4", False, False)
        third = _number_pair(four, bases, 0, 0, 2, "int4", False, False)
        fourth = _number_pair(four, bases, 0, 0, 3, "int4", False, False)
    else:
        bases = (zeros + 128).to(tl.float32)[:, :, :, :, :, None]
        first, second = (_pair(four, 0) - bases).to(DTYPE), (_pair(four, 1) - bases).to(DTYPE)
        third, fourth = (_pair(four, 2) - bases).to(DTYPE), (_pair(four, 3) - bases).to(DTYPE)
    both = tl.join(tl.join(first, second), tl.join(third, fourth))
    both = tl.permute(both, [1, 0, 2, 4, 7, 6, 3, 5] if WIDE else [1, 0, 2, 4, 7, 3, 6, 5])
    return tl.reshape(both, [16 * WARPS, 128])


@triton.jit
def in_fragment_order(x, WIDE: tl.constexpr):
    """See `forms.triton.in_fragment_order`."""
    parts = tl.reshape(x, [x.shape[0], x.shape[1] // 128, 4, 2, 2, 4, 2])
    return tl.reshape(tl.permute(parts, [0, 1, 5, 3, 4, 2, 6] if WIDE else [0, 1, 5, 3, 2, 4, 6]), x.shape)


@triton.jit
def _low(words, DTYPE: tl.constexpr):
    """The lowest number of each half of words times the least number of DTYPE, which is half precision, or 16 times the next ones: all of these are in its two lowest binades."""
    return halves(words & 0x000F000F, DTYPE), halves(words & 0x00F000F0, DTYPE)


@triton.jit
def row_fragments(words, DTYPE: tl.constexpr):
    """See `forms.triton.row_fragments`; 128 numbers of 4 bits of each row, those of thread t behind 32 t."""
    WARPS: tl.constexpr = words.shape[0] // 16
    four = tl.reshape(words, [2, WARPS, 8, 4, 2, 2])
    first, second = _low(four, DTYPE)
    third, fourth = _low(four >> 8, DTYPE)
    both = tl.join(tl.join(first, second), tl.join(third, fourth))
    return tl.reshape(tl.permute(both, [1, 0, 2, 8, 7, 4, 3, 5, 6]), [WARPS, 16, 128])


@triton.jit
def right_factor(pieces):
    """See `forms.triton.right_factor`; pieces of 8 of the 32 numbers of each thread."""
    both = tl.join(tl.join(pieces[0], pieces[1]), tl.join(pieces[2], pieces[3]))
    COLUMNS: tl.constexpr = both.shape[1]
    WARPS: tl.constexpr = both.shape[2]
    parts = tl.reshape(both, [4, COLUMNS, WARPS, 2, 2, 2, 2, 2])
    return tl.reshape(tl.permute(parts, [2, 7, 6, 3, 0, 4, 5, 1]), [WARPS, 128, COLUMNS])
