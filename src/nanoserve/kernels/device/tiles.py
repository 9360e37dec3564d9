"""Loads of parts of rows: of rows that exist or not, and of rows too long to be loaded at once."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_part(pointers, exists, SIZE: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr):
    """SIZE elements from each of `pointers` on, [N, PADDED]; zero if nothing exists and behind."""
    elements = tl.arange(0, PADDED)
    places = pointers[:, None] + elements[None, :]
    if MASKED:
        part = tl.load(places, mask=exists[:, None] & (elements < SIZE)[None, :], other=0.0)
    elif SIZE < PADDED:
        part = tl.load(places, mask=(elements < SIZE)[None, :], other=0.0)
    else:
        part = tl.load(places)
    return part


@triton.jit
def load_slice(ptrs, mask, EVEN: tl.constexpr, EVICTION: tl.constexpr):
    """The numbers at `ptrs`; unless EVEN, zeros outside of the mask."""
    if EVEN:
        part = tl.load(ptrs, eviction_policy=EVICTION)
    else:
        part = tl.load(ptrs, mask=mask, other=0.0, eviction_policy=EVICTION)
    return part


@triton.jit
def halves(pairs, DTYPE: tl.constexpr = tl.bfloat16):
    """Both numbers of half precision in each int32, the lower first, in a further dimension."""
    lower = pairs.to(tl.int16).to(DTYPE, bitcast=True)
    return tl.join(lower, (pairs >> 16).to(tl.int16).to(DTYPE, bitcast=True))


@triton.jit
def load_chunk(ptrs, ks, START: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr, EVICTION: tl.constexpr):
    """CHUNK elements of a vector or of rows from START on, zeros past K."""
    if START + CHUNK <= K:
        chunk = tl.load(ptrs + START, eviction_policy=EVICTION)
    else:
        chunk = tl.load(ptrs + START, mask=ks < K - START, other=0.0, eviction_policy=EVICTION)
    return chunk


@triton.jit
def load_chunks(chunks, ptrs, ks, K: tl.constexpr, CHUNK: tl.constexpr, EVICTION: tl.constexpr):
    """The tuple `chunks` and behind it all of a vector or of rows."""
    for c in tl.static_range((K + CHUNK - 1) // CHUNK):
        chunks = chunks + (load_chunk(ptrs, ks, c * CHUNK, K, CHUNK, EVICTION),)  # noqa: RUF005 - Triton's tuples know no star
    return chunks
