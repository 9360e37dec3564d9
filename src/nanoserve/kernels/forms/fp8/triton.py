"""8-bit floats in kernels; they are widened by way of float32, since straight to bfloat16 is one slow instruction for each."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.tiles import halves


@triton.jit
def _floats(words):
    return words.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def unit_sums(words, scales, x, ROWS: tl.constexpr, CHUNK: tl.constexpr, UNIT: tl.constexpr):
    """See `forms.triton.unit_sums`."""
    return tl.sum(tl.reshape(_floats(words) * x[None, :], [ROWS, CHUNK // UNIT, UNIT]), 2) * scales


@triton.jit
def load_step_scales(ptrs, k, K: tl.constexpr, GROUP: tl.constexpr):
    """The scale of each row, [ROWS], from number k on, which is where a group begins or inside of one."""
    return tl.load(ptrs + tl.minimum(k, K - 1) // GROUP)


@triton.jit
def step(words, scales, DTYPE: tl.constexpr, WHOLE: tl.constexpr):
    """See `forms.triton.step`."""
    wide = _floats(words)
    factors = scales[:, None]
    if WHOLE:
        wide *= factors
    return wide.to(DTYPE), factors


@triton.jit
def _pair(words, SECOND: tl.constexpr, DTYPE: tl.constexpr, PAIRS: tl.constexpr):
    """The first and third, or SECOND and fourth, of four numbers in DTYPE, in a further dimension.

    A number's exponent and mantissa are put where bfloat16 has them. That makes it 2 ** -120 of what it is, small numbers included.
    """
    if PAIRS:
        pairs = tl.inline_asm_elementwise(
            "{ .reg .b32 s, n; and.b32 s, $1, 0x80008000; shr.u32 n, $1, 4; "
            "lop3.b32 n, n, 0x07F007F0, s, 0xEA; mul.rn.bf16x2 $0, n, $2; }",
            "=r,r,r", [words if SECOND else words << 8, 0x7B807B80],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
        pair = halves(pairs)
    else:
        first = words >> 8 if SECOND else words
        pair = tl.join(_floats(first.to(tl.uint8)), _floats((first >> 16).to(tl.uint8))).to(DTYPE)
    return pair


@triton.jit
def fragments(words, DTYPE: tl.constexpr, PAIRS: tl.constexpr, WIDE: tl.constexpr):
    """See `forms.triton.fragments`; 64 numbers of each row, those of thread t behind 16 t."""
    WARPS: tl.constexpr = words.shape[0] // 16
    four = tl.reshape(words, [2, WARPS, 8, 4, 4])
    both = tl.join(_pair(four, False, DTYPE, PAIRS), _pair(four, True, DTYPE, PAIRS))
    both = tl.permute(both, [1, 0, 2, 4, 6, 3, 5] if WIDE else [1, 0, 2, 4, 3, 6, 5])
    return tl.reshape(both, [16 * WARPS, 64])


@triton.jit
def in_fragment_order(x, WIDE: tl.constexpr):
    """See `forms.triton.in_fragment_order`."""
    parts = tl.reshape(x, [x.shape[0], 4, 4, 2, 2])
    return tl.reshape(tl.permute(parts, [0, 2, 4, 1, 3] if WIDE else [0, 2, 1, 4, 3]), x.shape)
