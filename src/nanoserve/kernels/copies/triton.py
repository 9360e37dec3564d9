"""Copies on the device, of a segment of a run, a piece of a page or the vector of a token per program."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last


@triton.jit(do_not_specialize=["target_ptr", "upload_ptr"])
def scatter_segments(target_ptr, upload_ptr, SEGMENT: tl.constexpr):
    """Program i: segment i, up to SEGMENT integers; its descriptor in the upload is (destination in the target, length, source)."""
    # Neither pointer is specialised on: whether it is a multiple of 16 bytes changes, and would be compiled again.
    descriptor_ptr = upload_ptr + tl.program_id(0) * 3
    destination = tl.load(descriptor_ptr).to(tl.int64)
    length = tl.load(descriptor_ptr + 1)
    source = tl.load(descriptor_ptr + 2)
    places = tl.arange(0, SEGMENT)
    inside = places < length
    values = tl.load(upload_ptr + source + places, mask=inside)
    tl.store(target_ptr + destination + places, values, mask=inside)


@triton.jit(do_not_specialize=["pages"])
def copy_pages_kernel(pool_ptr, pairs_ptr, pages, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    """Program (pair, piece, layer): BLOCK of a page's PAGE elements; pool [layers, pages, PAGE], pairs [N, 2] of source and target."""
    source = tl.load(pairs_ptr + tl.program_id(0) * 2).to(tl.int64)
    target = tl.load(pairs_ptr + tl.program_id(0) * 2 + 1).to(tl.int64)
    elements = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    layer = tl.program_id(2).to(tl.int64) * pages
    content = tl.load(pool_ptr + (layer + source) * PAGE + elements, mask=elements < PAGE)
    tl.store(pool_ptr + (layer + target) * PAGE + elements, content, mask=elements < PAGE)


@triton.jit(do_not_specialize=["tokens_width"])
def embed_kernel(
    tokens_ptr, rows_ptr, positions_ptr, weight_ptr, out_ptr, tokens_width, scale,
    NEWEST: tl.constexpr, WIDTH: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program t: out[t] = scale weight[tokens[rows[t], positions[t]]], rounded once; a vector is [BLOCK] with its padding.

    With NEWEST `positions_ptr` holds the lengths of rows, else positions of tokens; a row has WIDTH tokens from its newest on.
    """
    let_next_start(PDL)
    wait_for_last(PDL)
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place // WIDTH).to(tl.int64)
    position = tl.load(positions_ptr + row) - 1 + place % WIDTH if NEWEST else tl.load(positions_ptr + place)
    token = tl.maximum(tl.load(tokens_ptr + row * tokens_width + position), 0).to(tl.int64)
    ks = tl.arange(0, BLOCK)
    vector = tl.load(weight_ptr + token * K + ks, mask=ks < K)
    if scale is not None:
        vector = (vector.to(tl.float32) * scale).to(vector.dtype)
    tl.store(out_ptr + place * K + ks, vector, mask=ks < K)
