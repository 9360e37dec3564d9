"""The launch of prefill attention, over tiles of chunks or over newest tokens."""

from __future__ import annotations

import math

import triton
from torch import Tensor

from nanoserve.kernels.device.launch import shared_memory
from nanoserve.kernels.paged import PagedCache
from nanoserve.kernels.prefill_attention.triton import prefill_attention_kernel
from nanoserve.kernels.prefill_attention.tuning import BlockSizes, choose_block, packed_heads


def prefill_attention(
    query: Tensor,
    cache: PagedCache,
    out: Tensor,
    *,
    tiles: Tensor,
    lengths: Tensor | None = None,
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    blocks: BlockSizes | None = None,
) -> None:
    """Attend with the queries of each tile to all cached tokens of its row up to each query's own.

    Cache slots that no query of a tile sees are not read, whatever they hold and wherever stale table entries point.

    With `lengths` the queries are the newest tokens of rows, each with the bits that it would have in a tile with the same
    `blocks`; that is slower than attention made for decoding. All that changes from step to step is then read on the device,
    so a captured graph of it can be replayed.

    Args:
        query: [T, num_heads * head_dim], rotated; bfloat16, float16 or float32, as are the other tensors without a
            dtype here.
        cache: with the queries' own keys and values already written.
        out: [T, num_heads * head_dim], written for the queries of the tiles and nowhere else.
        tiles: int32 [tiles, 4], contiguous: row, index of the first query in the step, number of queries, position
            of the first query. From `make_tiles`, with the `queries_per_tile` of the same `blocks`.
        lengths: None, or int32 [rows], tokens of each row; `tiles` is then int32 [B], the row of each query, which is
            its newest token.
        scale: positive, usually head_dim ** -0.5.
        soft_cap: scores s become soft_cap * tanh(s / soft_cap); None leaves them as they are.
        sinks: [num_heads], any float dtype: one more score per head, in the softmax alone (Xiao et al. 2023); None for none.
        blocks: sizes, by default `choose_block` for the head size and dtype.
    """
    # One program per tile and packed heads; a tile's programs are neighbours, as are the tiles of a row.
    num_kv_heads, block_size, head_dim = cache.keys.shape[1:]
    num_heads = query.shape[1] // head_dim
    rows, keys_per_visit, warps, stages = blocks or choose_block(
        head_dim, query.dtype, shared_memory(query.device)
    )
    packed = packed_heads(num_heads, num_kv_heads)
    # The softmax has base two, and a capped score is soft_cap * tanh(s / soft_cap): what multiplies it is the cap.
    log2_e = math.log2(math.e)
    inner, outer = (None, scale) if soft_cap is None else (2 * log2_e * scale / soft_cap, soft_cap)
    prefill_attention_kernel[(num_heads // packed, tiles.shape[0])](
        query, cache.keys, cache.values, out, tiles, tiles if lengths is None else lengths, cache.tables, sinks,
        cache.tables.stride(0), cache.block_stride, outer * log2_e, inner,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim,
        DIM=max(16, triton.next_power_of_2(head_dim)), BLOCK_SIZE=block_size, WINDOW=cache.window or 0, PACKED=packed,
        ROWS=rows, KEYS=keys_per_visit, STAGES=stages, NEWEST=lengths is not None, num_warps=warps,
    )  # fmt: skip
