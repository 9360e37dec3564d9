"""Launches of decode attention, and of prefill attention over tiles of chunks or over newest tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from nanoserve.kernels.device import roles
from nanoserve.kernels.device.launch import (
    SplitScratch,
    add_splits,
    has_wgmma,
    launch_options,
    multiprocessors,
    next_power_of_2,
    shared_memory,
)
from nanoserve.kernels.heads import HeadTransform, Scoring
from nanoserve.kernels.paged import PagedCache
from nanoserve.kernels.paged_attention import tuning
from nanoserve.kernels.paged_attention.triton import attend_to_rows
from nanoserve.kernels.paged_attention.triton_copies import attend_to_rows_by_copies
from nanoserve.kernels.paged_attention.triton_tiles import prefill_attention_kernel
from nanoserve.kernels.tiles import ROLES, BlockSizes


def decode_attention(
    qkv: Tensor,
    cache: PagedCache,
    transform: HeadTransform,
    out: Tensor,
    *,
    batch_rows: Tensor,
    lengths: Tensor,
    limits: Tensor | None = None,
    width: int = 1,
    scoring: Scoring,
    splits: int,
    scratch: SplitScratch,
    tiling: tuning.Tiling | tuning.Copied | None = None,
    pdl: bool = False,
) -> None:
    """Write the newest token of each place into the cache and attend to all that it sees: softmax(scale * q k^T) v.

    With a `width` W, the W - 1 tokens that are drafted behind it as well: each sees the tokens before it and itself, and their
    queries share one read of the cache.

    Nothing in the cache but the visible, older tokens of a place's own row influences its output, not even NaN, and
    nothing but the slots of those new tokens is written. Places must not share a row, except for padding: a row of
    length 1 may fill any number of places, which then race for its one slot and leave one token's key or another's.

    A row's result depends on its own tokens, on `splits` and on the tiling, not on where or with whom it is computed.

    Args:
        qkv: [B * W, (num_heads + 2 * kv_heads) * head_dim], rows contiguous, of each place's new tokens, bias included: its
            query heads, its key heads, its value heads.
        cache: of one layer, in the dtype of `qkv`.
        transform: of the query and key heads.
        out: [B * W, num_heads * head_dim], contiguous, overwritten.
        batch_rows: int32 [B], which row each place is.
        lengths: int32 [rows], tokens of each row, the newest included, which stands at position length - 1.
        limits: int32 [rows], how many tokens each row may come to have; a `width` above 1 needs it. From the place of the last one
            on, no slot is written, and what is computed there means nothing.
        width: tokens of each place, a power of two.
        scoring: how products become weights.
        splits: programs per row and KV head, from `choose_splits`; any number is right for any length.
        scratch: for at least B * W * splits sums per head; not used if `splits` is 1.
        tiling: how each program walks its tokens, by default the `decode_tiling`.
        pdl: whether this launch takes part in programmatic dependent launch. Rows, lengths, block tables and older
            keys and values are then read before earlier kernels are done: none of those may still write them.

    Raises:
        ValueError: if the scratch is too small.
    """
    tokens = len(qkv)
    _, kv_heads, block_size, head_dim = cache.keys.shape
    num_heads = out.shape[1] // head_dim
    if splits > 1 and tokens * num_heads * splits > len(scratch.ms):
        raise ValueError(f"{tokens} tokens of {num_heads} heads in {splits} splits exceed the scratch memory")
    group, cap = num_heads // kv_heads, scoring.soft_cap
    # What a score is in units of log2; the capped ones are made of exp2(2 log2(e) s / soft_cap), see the kernels.
    what: dict[str, Any] = {
        "qkv_ptr": qkv, "keys_ptr": cache.keys, "values_ptr": cache.values, "out_ptr": out, "accs_ptr": scratch.accs,
        "ms_ptr": scratch.ms, "ls_ptr": scratch.ls, "batch_rows_ptr": batch_rows, "lengths_ptr": lengths, "limits_ptr": limits,
        "tables_ptr": cache.tables, "rotations_ptr": transform.rotations, "q_norm_ptr": transform.q_norm,
        "k_norm_ptr": transform.k_norm, "sinks_ptr": scoring.sinks, "scales_ptr": cache.scales,
        "token_stride": qkv.stride(0), "table_stride": cache.tables.stride(0), "window": cache.window or 0,
        "scale": scoring.scale if cap is None else 2 * scoring.scale / cap, "cap": cap, "eps": transform.eps,
        "HEADS": num_heads, "KV_HEADS": kv_heads, "D": head_dim, "BLOCK_SIZE": block_size, "WIDTH": width,
        "WINDOWED": cache.window is not None, "SPLIT": splits > 1, "PDL": pdl, **launch_options(pdl),
    }  # fmt: skip
    grid = kv_heads, tokens // width, splits
    if tiling is None:
        tiling = decode_tiling(
            cache, qkv.dtype, group=group, batch=tokens // width, width=width, splits=splits
        )
    if isinstance(tiling, tuning.Copied):
        keys, values = _described_blocks(cache, tiling.keys)
        attend_to_rows_by_copies[grid](
            **what, keys=keys, values=values, block_rows=cache.block_stride // head_dim, COLUMNS=tiling.columns, KEYS=tiling.keys,
            STAGES=tuning.COPIED_VISITS, num_warps=tiling.warps,
        )  # fmt: skip
    else:
        attend_to_rows[grid](
            **what, block_stride=cache.block_stride, PADDED_GROUP=tuning.padded_group(group, width), PADDED_D=max(16, next_power_of_2(head_dim)),
            NORM=transform.q_norm is not None, TILE=tiling.tokens, STAGES=tiling.stages, EARLY=tiling.early, num_warps=tiling.warps,
        )  # fmt: skip
    if splits > 1:
        add_splits(out.view(-1, head_dim), scratch, splits=splits, pdl=pdl)


def decode_tiling(
    cache: PagedCache, dtype: torch.dtype, *, group: int, batch: int, width: int, splits: int
) -> tuning.Tiling | tuning.Copied:
    """How `batch` places are served, `group` query heads of each of `width` tokens by a KV head: by the copy engine on Hopper, in 16 bits, where that is faster."""
    (kv_heads, _, head_dim), narrow = cache.keys.shape[1:], cache.keys.dtype.itemsize == 1
    fits = tuning.fits_copies(head_dim, group * width)
    if (
        fits
        and tuning.is_copied(batch, head_dim, splits, narrow=narrow)
        and dtype.itemsize == 2
        and _is_described(cache)
    ):
        return tuning.copied_sizes(group * width, head_dim)
    heads = {"padded": tuning.padded_group(group, width), "kv_heads": kv_heads}
    return tuning.choose_tile(batch, head_dim, cache.keys.dtype, splits, **heads)


def prefill_attention(
    query: Tensor,
    cache: PagedCache,
    out: Tensor,
    *,
    tiles: Tensor,
    lengths: Tensor | None = None,
    width: int = 1,
    ends: Tensor | None = None,
    scoring: Scoring,
    blocks: BlockSizes | None = None,
    by_roles: bool | None = False,
) -> None:
    """Attend with the queries of each tile to all cached tokens of its row up to each query's own, or with `ends` to those behind it, too.

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
        width: with `lengths`, how many queries each row has, of its newest token and those behind it.
        ends: None for causal attention, or int32 [rows], tokens of each row, all of which are cached: a query then sees those behind it
            as well, and of a window those less than this many positions away on either side. Not with `lengths`.
        scoring: how products become weights.
        blocks: sizes, by default `choose_block` for the head size and dtype.
        by_roles: whether by warps of three roles, 1.1 to 1.6 times as fast, with other bits: causal, with a cache that `suits_roles`, contiguous queries, and
            tiles for the rows of `ROLES`. None for many queries over such a cache.
    """
    num_kv_heads, block_size, head_dim = cache.keys.shape[1:]
    num_heads = query.shape[1] // head_dim
    packed = tuning.packed_heads(num_heads, num_kv_heads)
    scale, inner = _scales(scoring)
    if by_roles is None:
        by_roles = len(query) >= tuning.LEAST_BY_ROLES and suits_roles(cache, scoring.sinks)
    if by_roles:
        keys, values = _described_blocks(cache, ROLES.keys)
        heads = [len(query), num_heads, head_dim], [num_heads * head_dim, head_dim, 1]
        box = [ROLES.rows // packed, packed, roles.CHUNK.value]
        queries = TensorDescriptor(query, *heads, box, roles.SWIZZLED_HEADS.value)
        items = len(tiles) * (num_heads // packed)
        roles.prefill_attention_by_roles_kernel[(min(items, multiprocessors(query.device)),)](
            query=queries, keys=keys, rotated=None, values=values, out_ptr=out, accs_ptr=None, ms_ptr=None, ls_ptr=None, tiles_ptr=tiles,
            tables_ptr=cache.tables, table_stride=cache.tables.stride(0), block_rows=cache.block_stride // head_dim, items=items, counter_ptr=None, scale=scale,
            inner=inner,
            NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, WINDOW=cache.window or 0,
            PACKED=packed, ROWS=ROLES.rows, KEYS=ROLES.keys, STAGES=ROLES.stages, num_warps=ROLES.warps,
        )  # fmt: skip
        return
    # One program per tile and packed heads; a tile's programs are neighbours, as are the tiles of a row.
    if blocks is None:
        room, is_narrow = shared_memory(query.device), cache.scales is not None
        blocks = tuning.choose_block(head_dim, query.dtype, room, narrow=is_narrow)
        blocks = blocks if lengths is None else tuning.newest_block(blocks)
    rows, keys_per_visit, warps, stages = blocks
    prefill_attention_kernel[(num_heads // packed, tiles.shape[0] * width)](
        query_ptr=query, keys_ptr=cache.keys, values_ptr=cache.values, out_ptr=out, tiles_ptr=tiles,
        lengths_ptr=lengths if lengths is not None else tiles if ends is None else ends, block_tables_ptr=cache.tables, sinks_ptr=scoring.sinks,
        scales_ptr=cache.scales,
        table_stride=cache.tables.stride(0), block_stride=cache.block_stride, scale=scale, inner=inner,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim,
        DIM=max(16, next_power_of_2(head_dim)), BLOCK_SIZE=block_size, WINDOW=cache.window or 0,
        PACKED=packed, ROWS=rows, KEYS=keys_per_visit, STAGES=stages,
        NEWEST=lengths is not None, WIDTH=width, BOTH=ends is not None, num_warps=warps,
    )  # fmt: skip


def suits_roles(cache: PagedCache, sinks: Tensor | None) -> bool:
    """True if warps of three roles can read the cache: on Hopper, in 16 bits, with heads of 128 elements."""
    return (
        cache.keys.dtype.itemsize == 2
        and sinks is None
        and cache.keys.shape[3] == 128
        and _is_described(cache)
    )


def _is_described(cache: PagedCache) -> bool:
    """True if the device has a copy engine, and the cache blocks that can be described to it."""
    blocks, _, block_size, head_dim = cache.keys.shape
    rows = blocks * cache.block_stride // head_dim
    fits = block_size >= 16 and block_size & (block_size - 1) == 0 and rows < 2**31
    return fits and cache.block_stride % head_dim == 0 and has_wgmma(cache.keys.device)


def _described_blocks(cache: PagedCache, keys: int) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Keys and values as rows of a head, by boxes of one block, or of `keys` rows of a larger one, and at most 128 bytes of each row."""
    blocks, num_kv_heads, block_size, head_dim = cache.keys.shape
    rows = (blocks - 1) * (cache.block_stride // head_dim) + num_kv_heads * block_size
    size = cache.keys.dtype.itemsize
    chunk = min(head_dim, 128 // size)
    box, layout = [min(block_size, keys), chunk], NVMMASharedLayout(chunk * size, 8 * size, rank=2)
    how = [rows, head_dim], [head_dim, 1], box, layout
    return TensorDescriptor(cache.keys, *how), TensorDescriptor(cache.values, *how)


def _scales(scoring: Scoring) -> tuple[float, float | None]:
    """The kernels' `scale` and `inner`: their softmax has base two, and a capped score is soft_cap * tanh(s / soft_cap), so that the cap multiplies it."""
    log2_e, scale, cap = math.log2(math.e), scoring.scale, scoring.soft_cap
    return (scale * log2_e, None) if cap is None else (cap * log2_e, 2 * log2_e * scale / cap)
