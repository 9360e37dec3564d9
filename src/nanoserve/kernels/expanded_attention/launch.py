"""Launches of expanded attention: gathering the entries of spans, and attending to what was made of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import triton
from torch import Tensor

from nanoserve.kernels.device.launch import shared_memory
from nanoserve.kernels.expanded_attention.triton import attend_expanded, gather_entries
from nanoserve.kernels.expanded_attention.tuning import BlockSizes, choose_block
from nanoserve.kernels.latent import LatentCache, padded

GATHERED_AT_A_TIME = 16


class ExpandedSums(NamedTuple):
    """Sums of a step's queries over earlier rounds, in float32.

    Attributes:
        totals: [T, num_heads, value_dim], unnormalised sums of values.
        tops: [T, num_heads], the maximum that the exponents are relative to, in units of log2.
        weights: [T, num_heads], sums of the exponentials.
    """

    totals: Tensor
    tops: Tensor
    weights: Tensor


def gather_entries_into(cache: LatentCache, spans: Tensor, gathered: Tensor, *, longest: int) -> None:
    """Copy the entries of spans out of their blocks.

    Args:
        cache: of one layer.
        spans: int32 [chunks, 4], contiguous: row, first position, position behind the last, where the first goes.
        gathered: [keys, latent_dim + rope_dim], contiguous.
        longest: at least the entries of the longest span.
    """
    width = gathered.shape[1]
    gather_entries[triton.cdiv(longest, GATHERED_AT_A_TIME), len(spans)](
        cache.entries, gathered, cache.tables, spans, cache.tables.stride(0), cache.block_stride,
        BLOCK_SIZE=cache.entries.shape[1], WIDTH=width, PADDED_WIDTH=triton.next_power_of_2(width),
        TOKENS=GATHERED_AT_A_TIME, num_warps=4,
    )  # fmt: skip


def expanded_attention(
    query: Tensor,
    expanded: Tensor,
    gathered: Tensor,
    out: Tensor,
    *,
    tiles: Tensor,
    spans: Tensor,
    sums: ExpandedSums,
    scale: float,
    blocks: BlockSizes | None = None,
) -> None:
    """Attend with the queries of each tile to the keys of its chunk's span up to each query's own.

    A chunk's spans come in rising order, in one call each. The first one begins at position 0; a tile's output is written in
    the call whose span holds its last query's position. For the same keys and values bits do not depend on the cuts between
    tiles and spans.

    Args:
        query: [T, num_heads, nope_dim + rope_dim], contiguous but for the stride of the tokens; rotated.
        expanded: [keys, num_heads, nope_dim + value_dim], contiguous: keys without position, and values.
        gathered: [keys, latent_dim + rope_dim], contiguous; the last rope_dim elements are all heads' rotated key.
        out: [T, num_heads, value_dim], contiguous, written for the queries of the tiles and nowhere else.
        tiles: int32 [tiles, 4], contiguous: chunk, index of the first query in the step, number of queries, position
            of the first query. At most `blocks.rows` queries each.
        spans: as for `gather_entries_into`, one of each chunk, at most; they begin at multiples of `blocks.keys`.
        sums: of T queries, kept from call to call; written where a tile has keys to come.
        scale: positive, what scores are multiplied with.
        blocks: sizes, by default `choose_block` for the heads and dtype.
    """
    (_, num_heads, query_dim), value_dim = query.shape, out.shape[2]
    nope_dim = expanded.shape[2] - value_dim
    rope_dim = query_dim - nope_dim
    rows, keys, warps, stages = blocks or choose_block(
        padded(nope_dim) + padded(rope_dim), padded(value_dim), query.dtype, shared_memory(query.device)
    )
    attend_expanded[num_heads, len(tiles)](
        query, expanded, gathered, out, *sums, tiles, spans, query.stride(0), scale * math.log2(math.e),
        NUM_HEADS=num_heads, LATENT=gathered.shape[1] - rope_dim, NOPE=nope_dim, ROPE=rope_dim, VALUE=value_dim,
        PADDED_NOPE=padded(nope_dim), PADDED_ROPE=padded(rope_dim), PADDED_VALUE=padded(value_dim), ROWS=rows, KEYS=keys,
        STAGES=stages, num_warps=warps,
    )  # fmt: skip
