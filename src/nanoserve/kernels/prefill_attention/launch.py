"""Launches of prefill attention, over tiles of chunks and over newest tokens."""

from __future__ import annotations

import math

import triton
from torch import Tensor

from nanoserve.kernels.prefill_attention.triton import prefill_attention_kernel
from nanoserve.kernels.prefill_attention.tuning import Blocks, choose_block, packed_heads
from nanoserve.kernels.triton_launch import launch_options, shared_memory


def prefill_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    *,
    tiles: Tensor,
    lengths: Tensor | None = None,
    block_tables: Tensor,
    scale: float,
    window: int | None = None,
    blocks: Blocks | None = None,
    pdl: bool = False,
) -> None:
    """Attend with the queries of each tile to all cached tokens of its row up to each query's own.

    Cache slots that no query of a tile sees are not read, whatever they hold and wherever stale table
    entries point. Query heads [i * G, (i + 1) * G) share KV head i, with G = num_heads / num_kv_heads.

    Args:
        query: [T, num_heads * head_dim], rotated; bfloat16, float16 or float32, as are the other tensors without a
            dtype here.
        keys: [blocks, num_kv_heads, block_size, head_dim], one layer's pool, the queries' own keys already written;
            head_dim at most 256.
        values: like `keys`.
        out: [T, num_heads * head_dim], written for the queries of the tiles and nowhere else.
        tiles: int32 [tiles, 4], contiguous: row, index of the first query in the step, number of queries, position
            of the first query. From `make_tiles`, with the `queries_per_tile` of the same `blocks`.
        lengths: None, or int32 [rows], tokens of each row; `tiles` is then int32 [B], the row of each query, which is
            its newest token.
        block_tables: int32 [rows, max_blocks], last dimension contiguous.
        scale: positive, usually head_dim ** -0.5.
        window: None, or how many tokens a query sees at most, itself included.
        blocks: sizes, by default `choose_block` for the head size and dtype.
        pdl: whether to start before the kernel before has ended. Then `tiles` must have been written before the
            chain of such kernels began.
    """
    # One program per tile and packed heads; a tile's programs are neighbours, as are the tiles of a row.
    num_kv_heads, block_size, head_dim = keys.shape[1:]
    num_heads = query.shape[1] // head_dim
    rows, keys_per_visit, warps, stages = blocks or choose_block(
        head_dim, query.dtype, shared_memory(query.device)
    )
    packed = packed_heads(num_heads, num_kv_heads)
    prefill_attention_kernel[(num_heads // packed, tiles.shape[0])](
        query, keys, values, out, tiles, tiles if lengths is None else lengths, block_tables, block_tables.stride(0),
        scale * math.log2(math.e),
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim,
        DIM=max(16, triton.next_power_of_2(head_dim)), BLOCK_SIZE=block_size, WINDOW=window or 0, PACKED=packed,
        ROWS=rows, KEYS=keys_per_visit, STAGES=stages, NEWEST=lengths is not None, PDL=pdl, num_warps=warps,
        **launch_options(pdl),
    )  # fmt: skip


def prefill_attention_newest(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    *,
    batch_rows: Tensor,
    lengths: Tensor,
    block_tables: Tensor,
    scale: float,
    window: int | None = None,
    blocks: Blocks | None = None,
    pdl: bool = False,
) -> None:
    """Attend with the newest token of each row: query i is at position lengths[batch_rows[i]] - 1.

    Bit for bit what `prefill_attention` gives for that position with the same `blocks`; slower than
    attention made for decoding. All that changes from step to step is read on the device, so a captured graph of it
    can be replayed.

    `query` and `out` are [B, num_heads * head_dim], `batch_rows` int32 [B], the row of each query, and `lengths` int32
    [rows], tokens of each row, the newest included. All else is as in `prefill_attention`, `pdl` for both of these.
    """
    prefill_attention(
        query, keys, values, out, tiles=batch_rows, lengths=lengths, block_tables=block_tables, scale=scale,
        window=window, blocks=blocks, pdl=pdl,
    )  # fmt: skip
