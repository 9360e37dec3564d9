"""MXFP4 in kernels. A word of 32 bits holds eight numbers (`PLACES` in `__init__.py`).

Two of them at a time are shifted to where bfloat16 has sign, lowest exponent bits and highest mantissa bit, which makes their values
times 2 ** -126, subnormal ones included, and the group's power of two makes up for that. Widening is what takes the time of kernels of a
few rows, so what counts is how many instructions a number takes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.tiles import halves, in_row_order

_SIGNS = tl.constexpr(-0x7FFF8000)  # 0x80008000
_NUMBERS = tl.constexpr(-0x7E3F7E40)  # 0x81C081C0
_UPPER = tl.constexpr(-0x10000)  # 0xFFFF0000
X_FACTOR = tl.constexpr(2.0**64)
"""Numbers come times 2 ** -126: with x times this nothing is lost, and what x may be is no bound."""


@triton.jit
def _pairs(words, FIRST: tl.constexpr):
    """Numbers FIRST and FIRST + 4 of each word as bfloat16 in its halves, times 2 ** -126."""
    if FIRST < 3:
        pairs = (words << 3 * FIRST) & _NUMBERS
    else:
        pairs = ((words << 1) & _SIGNS) | ((words >> 5) & 0x01000100) | ((words >> 4) & 0x00C000C0)
    return pairs


@triton.jit
def _pair(words, FIRST: tl.constexpr):
    """Both as float32, in a further dimension."""
    pairs = _pairs(words, FIRST)
    return tl.join((pairs << 16).to(tl.float32, bitcast=True), (pairs & _UPPER).to(tl.float32, bitcast=True))


@triton.jit
def _unpacked(words, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """The eight numbers of each word [ROWS, WORDS] as float32 [ROWS, 8 WORDS], times 2 ** -126 (see `layout.gathered`)."""
    groups = tl.reshape(words, [ROWS, WORDS // 4, 4])
    return in_row_order(
        *(_pair(groups, 0), _pair(groups, 1)), *(_pair(groups, 2), _pair(groups, 3)), ROWS, WORDS
    )


@triton.jit
def _scaled(words, factors, FIRST: tl.constexpr):
    """Numbers FIRST and FIRST + 4 of each word times bfloat16 `factors`, which each word has twice, in a further dimension."""
    pairs = tl.inline_asm_elementwise(
        "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [_pairs(words, FIRST), factors], tl.int32, is_pure=True, pack=1
    )
    return halves(pairs)


@triton.jit
def _exponents(words, ROWS: tl.constexpr, GROUPS: tl.constexpr):
    """GROUPS bytes of a row's words, or its word's lowest ones, by views alone: the compiler then loads words to where numbers are wanted."""
    if GROUPS >= 4:
        bytes_ = tl.join(tl.join(words, words >> 16), tl.join(words >> 8, words >> 24))
    elif GROUPS == 2:
        bytes_ = tl.join(words, words >> 8)
    else:
        bytes_ = words
    return tl.reshape(bytes_, [ROWS, GROUPS]) & 255


@triton.jit
def _power(exponents, MORE: tl.constexpr):
    """2 ** (exponents - 127 + MORE) as float32."""
    return ((exponents.to(tl.int32) + MORE) << 23).to(tl.float32, bitcast=True)


@triton.jit
def unit_sums(words, scales, x, ROWS: tl.constexpr, CHUNK: tl.constexpr, UNIT: tl.constexpr):
    """See `forms.triton.unit_sums`."""
    wide = _unpacked(words, ROWS, CHUNK // 8)
    return tl.sum(tl.reshape(wide * x[None, :], [ROWS, CHUNK // UNIT, UNIT]), 2) * _power(scales, 62)


@triton.jit
def load_step_scales(ptrs, k, K: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr):
    """The exponents of each row from number k on, of four groups in a word with the first in the lowest byte, [ROWS] or [ROWS, BK / 128]."""
    STEP: tl.constexpr = 128
    if BK > STEP:
        words = tl.minimum(tl.arange(0, BK // STEP) + k // STEP, SCALES - 1)
        scales = tl.load(ptrs[:, None] + words[None, :])
    else:
        scales = tl.load(ptrs + tl.minimum(k, K - 1) // STEP)
        if BK < STEP:
            scales >>= k % STEP // GROUP * 8
    return scales


@triton.jit
def step(words, scales, DTYPE: tl.constexpr, WHOLE: tl.constexpr, PAIRS: tl.constexpr):
    """See `forms.triton.step`; what is not WHOLE is twice as large: a factor of one would be left out."""
    ROWS: tl.constexpr = words.shape[0]
    WORDS: tl.constexpr = words.shape[1]
    GROUPS: tl.constexpr = WORDS // 4
    MORE: tl.constexpr = 126 if WHOLE else 127
    exponents = _exponents(scales, ROWS, GROUPS)
    if PAIRS:
        groups = tl.reshape(words, [ROWS, GROUPS, 4])
        factors = ((exponents + MORE) << 7) * 0x10001
        factors = tl.broadcast_to(factors[:, :, None], [ROWS, GROUPS, 4])
        first, second = _scaled(groups, factors, 0), _scaled(groups, factors, 1)
        third, fourth = _scaled(groups, factors, 2), _scaled(groups, factors, 3)
        wide = in_row_order(first, second, third, fourth, ROWS, WORDS)
    else:
        wide = tl.reshape(_unpacked(words, ROWS, WORDS), [ROWS, GROUPS, 32])
        wide = tl.reshape(wide * _power(exponents, MORE)[:, :, None], [ROWS, 8 * WORDS]).to(DTYPE)
    return wide, 0.5
