"""The embedding lookup, one token per program."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last


@triton.jit(do_not_specialize=["tokens_width"])
def embed_kernel(
    tokens_ptr, rows_ptr, positions_ptr, weight_ptr, out_ptr, tokens_width, scale,
    NEWEST: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Copy the vector of one token, times `scale`; the product is rounded once.

    With NEWEST `positions_ptr` holds the lengths of rows, else positions of tokens.
    """
    let_next_start(PDL)
    wait_for_last(PDL)
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place).to(tl.int64)
    position = tl.load(positions_ptr + row) - 1 if NEWEST else tl.load(positions_ptr + place)
    token = tl.load(tokens_ptr + row * tokens_width + position).to(tl.int64)
    ks = tl.arange(0, BLOCK)
    vector = tl.load(weight_ptr + token * K + ks, mask=ks < K)
    if scale is not None:
        vector = (vector.to(tl.float32) * scale).to(vector.dtype)
    tl.store(out_ptr + place * K + ks, vector, mask=ks < K)
