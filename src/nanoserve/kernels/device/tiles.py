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
def load_tile(tiles_ptr, lengths_ptr, tile, NEWEST: tl.constexpr, WIDTH: tl.constexpr):
    """A tile's row, its first query's index in the step, its number of queries, and the first one's position.

    `tiles_ptr` has these four of each; with NEWEST it has rows, and each tile is the newest token of its row, or one of WIDTH from there on.
    """
    if NEWEST:
        row = tl.load(tiles_ptr + tile // WIDTH).to(tl.int64)
        token = tile
        count = 1
        position = tl.load(lengths_ptr + row) - 1 + tile % WIDTH
    else:
        row = tl.load(tiles_ptr + tile * 4).to(tl.int64)
        token = tl.load(tiles_ptr + tile * 4 + 1)
        count = tl.load(tiles_ptr + tile * 4 + 2)
        position = tl.load(tiles_ptr + tile * 4 + 3)
    return row, token, count, position


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
def in_row_order(first, second, third, fourth, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """Pairs [ROWS, WORDS / 4, 4, 2] of each word of eight numbers, as numbers [ROWS, 8 WORDS] (see `forms.layout.gathered`)."""
    both = tl.join(tl.join(first, second), tl.join(third, fourth))
    return tl.reshape(tl.permute(both, [0, 1, 5, 4, 2, 3]), [ROWS, 8 * WORDS])


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
