"""Vectors and rows of weights in chunks, for kernels in which one token meets all of a row at once."""

from __future__ import annotations

import triton
import triton.language as tl


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
        chunk = load_chunk(ptrs, ks, c * CHUNK, K, CHUNK, EVICTION)
        chunks = chunks + (chunk,)  # noqa: RUF005 - Triton's tuples know no star
    return chunks
