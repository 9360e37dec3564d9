"""8-bit floats in kernels: how a weight is widened, and rows of a product's other factor are rounded.

They are widened by way of float32, since straight to bfloat16 is one slow instruction for each.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.gates import gated
from nanoserve.kernels.device.pdl import let_next_start, wait_for_last
from nanoserve.kernels.device.tiles import halves

_SIGNS = tl.constexpr(-0x7FFF8000)  # 0x80008000


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
    parts = tl.reshape(x, [x.shape[0], x.shape[1] // 64, 4, 4, 2, 2])
    return tl.reshape(tl.permute(parts, [0, 1, 3, 5, 2, 4] if WIDE else [0, 1, 3, 2, 5, 4]), x.shape)


@triton.jit
def _bits(words, SECOND: tl.constexpr, DTYPE: tl.constexpr):
    """The first and third, or SECOND and fourth, of four numbers, times 2 ** -120 in bfloat16 or 2 ** -8 in float16, in a further dimension.

    Sign, exponent and mantissa are put where DTYPE has them; small numbers are right, too.
    """
    MORE: tl.constexpr = 0 if SECOND else 8
    if tl.bfloat16 == DTYPE:
        sizes = (words >> 4 - MORE if SECOND else words << MORE - 4) & 0x07F007F0
    else:
        sizes = (words >> 1 - MORE if SECOND else words << MORE - 1) & 0x3F803F80
    return halves(sizes | ((words << MORE) & _SIGNS), DTYPE)


@triton.jit
def row_fragments(words, DTYPE: tl.constexpr):
    """See `forms.triton.row_fragments`; 64 numbers of each row, those of thread t behind 16 t."""
    WARPS: tl.constexpr = words.shape[0] // 16
    four = tl.reshape(words, [2, WARPS, 8, 4, 2, 2])
    both = tl.join(_bits(four, False, DTYPE), _bits(four, True, DTYPE))
    return tl.reshape(tl.permute(both, [1, 0, 2, 4, 5, 3, 7, 6]), [WARPS, 16, 64])


@triton.jit
def right_factor(pieces):
    """See `forms.triton.right_factor`; pieces of 8 of the 16 numbers of each thread."""
    both = tl.join(pieces[0], pieces[1])
    COLUMNS: tl.constexpr = both.shape[1]
    WARPS: tl.constexpr = both.shape[2]
    parts = tl.reshape(both, [4, COLUMNS, WARPS, 2, 2, 2, 2])
    return tl.reshape(tl.permute(parts, [2, 6, 3, 0, 5, 4, 1]), [WARPS, 64, COLUMNS])


@triton.jit
def store_quantized(out_ptrs, scale_ptr, x, valid):
    """Write a row, float32 [BLOCK], as 8-bit floats of which the largest is the largest that there is, and their scale; zero if not `valid`."""
    scale = tl.maximum(tl.max(tl.abs(x), 0), 2.0**-100) / 448.0
    tl.store(scale_ptr, scale)
    x /= scale
    # To four bits (Dekker 1971) before it is converted, since Triton's interpreter carries nothing if it rounds.
    over = x * (2.0**20 + 1)
    tl.store(out_ptrs, (over - (over - x)).to(out_ptrs.dtype.element_ty), mask=valid)


@triton.jit
def quantize_rows_kernel(
    x_ptr, out_ptr, scale_ptr, SIZE: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Program m: out[m] = x[m] / scales[m] in 8-bit floats, a row in one tile [BLOCK]; with ACTIVATION of activation(gate) up, x [M, 2 SIZE]."""
    let_next_start(PDL)
    wait_for_last(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    valid = columns < SIZE
    if ACTIVATION is None:
        x = tl.load(x_ptr + row * SIZE + columns, mask=valid, other=0.0).to(tl.float32)
    else:
        gate_ptrs = x_ptr + row * (2 * SIZE) + columns
        gate = tl.load(gate_ptrs, mask=valid, other=0.0, eviction_policy="evict_first").to(tl.float32)
        up = tl.load(gate_ptrs + SIZE, mask=valid, other=0.0, eviction_policy="evict_first").to(tl.float32)
        x = gated(gate, up, ACTIVATION)
    store_quantized(out_ptr + row * SIZE + columns, scale_ptr + row, x, valid)
