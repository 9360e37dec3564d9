"""Launches of latent attention."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from nanoserve.kernels.device import roles
from nanoserve.kernels.device.launch import (
    SplitScratch,
    add_splits,
    has_wgmma,
    launch_options,
    multiprocessors,
    shared_memory,
)
from nanoserve.kernels.latent import LatentCache, padded
from nanoserve.kernels.latent_attention import tuning
from nanoserve.kernels.latent_attention.triton import (
    attend_to_rows,
    attend_with_tiles,
    head_linear_kernel,
)
from nanoserve.kernels.latent_attention.triton_tiles import attend_expanded, gather_entries
from nanoserve.kernels.tiles import ROLES, BlockSizes

LOG2_E = math.log2(math.e)


def latent_decode(
    query: Tensor,
    cache: LatentCache,
    out: Tensor,
    *,
    batch_rows: Tensor,
    lengths: Tensor,
    width: int = 1,
    scale: float,
    splits: int,
    scratch: SplitScratch,
    blocks: BlockSizes | None = None,
    pdl: bool = False,
) -> None:
    """Attend with the newest token of each place to all tokens of its row: softmax(scale * q e^T) e[:, :latent_dim].

    Nothing in the cache but the tokens of a place's own row influences its output, not even NaN. A row's result depends on
    its own tokens, on `splits` and on `blocks`, not on where or with whom it is computed.

    Args:
        query: [B * width, num_heads, latent_dim + rope_dim], contiguous, absorbed and rotated.
        cache: of one layer, with the newest tokens' own entries already written, in the dtype of `query`.
        out: [B * width, num_heads, latent_dim], contiguous, overwritten.
        batch_rows: int32 [B], which row each place is.
        lengths: int32 [rows], tokens of each row, the newest included.
        width: queries of each place, of its newest token and those behind it, each of which sees what is before it.
        scale: positive, what scores are multiplied with.
        splits: programs per row, from `choose_splits`; any number is right for any length.
        scratch: for at least B * width * splits sums per head; not used if `splits` is 1.
        blocks: sizes, by default `decode_block` for the entries and dtype.
        pdl: see `nanoserve.kernels.device.pdl`. Rows, lengths and block tables are read before the wait.

    Raises:
        ValueError: if the scratch is too small.
    """
    batch, num_heads, _ = query.shape
    latent_dim, rope_dim = cache.latent_dim, cache.rope_dim
    if splits > 1 and batch * num_heads * splits > len(scratch.ms):
        raise ValueError(f"{batch} places of {num_heads} heads in {splits} splits exceed the scratch memory")
    groups, entry = triton.cdiv(num_heads, tuning.HEADS), tuning.padded_width(latent_dim, rope_dim)
    how: dict[str, Any] = {"wgmma": has_wgmma(query.device), "programs": groups * batch if splits == 1 else 1}
    blocks = blocks or tuning.decode_block(entry, query.dtype, shared_memory(query.device), **how)
    heads, tokens, warps, stages = blocks
    attend_to_rows[groups, batch, splits](
        query_ptr=query, entries_ptr=cache.entries, out_ptr=out, accs_ptr=scratch.accs, ms_ptr=scratch.ms,
        ls_ptr=scratch.ls, batch_rows_ptr=batch_rows, lengths_ptr=lengths, tables_ptr=cache.tables,
        table_stride=cache.tables.stride(0), block_stride=cache.block_stride, scale=scale * LOG2_E,
        NUM_HEADS=num_heads, BLOCK_SIZE=cache.entries.shape[1], LATENT=latent_dim, ROPE=rope_dim,
        CHUNK=min(tuning.CHUNK, padded(latent_dim)), PADDED_ROPE=padded(rope_dim), HEADS=heads, TOKENS=tokens,
        STAGES=stages, KEYS=0 if tokens >= tuning.WIDE else 1, WIDTH=width, SPLIT=splits > 1,
        PDL=pdl, num_warps=warps, **launch_options(pdl),
    )  # fmt: skip
    if splits > 1:
        add_splits(out.view(-1, latent_dim), scratch, splits=splits, pdl=pdl)


def latent_prefill(
    query: Tensor,
    cache: LatentCache,
    out: Tensor,
    *,
    tiles: Tensor,
    lengths: Tensor | None = None,
    width: int = 1,
    scale: float,
    blocks: BlockSizes | None = None,
) -> None:
    """Attend with the queries of each tile to all cached tokens of its row up to each query's own.

    Cache slots that no query of a tile sees are not read, whatever they hold and wherever stale table entries point.

    With `lengths` the queries are the newest tokens of rows, each with the bits that it would have in a tile with the same
    `blocks`; all that changes from step to step is then read on the device, so a captured graph of it can be replayed.

    Args:
        query: [T, num_heads, latent_dim + rope_dim], contiguous, absorbed and rotated.
        cache: of one layer, with the queries' own entries already written, in the dtype of `query`.
        out: [T, num_heads, latent_dim], contiguous, written for the queries of the tiles and nowhere else.
        tiles: int32 [tiles, 4], contiguous: row, index of the first query in the step, number of queries, position
            of the first query. At most `queries_per_tile` queries each.
        lengths: None, or int32 [rows], tokens of each row; `tiles` is then int32 [B], the row of each query, which is
            its newest token.
        width: with `lengths`, how many queries each row has, of its newest token and those behind it.
        scale: positive, what scores are multiplied with.
        blocks: sizes, by default `prefill_block` for the entries and dtype.
    """
    num_heads, latent_dim, rope_dim = query.shape[1], cache.latent_dim, cache.rope_dim
    rows, tokens, warps, stages = blocks or tuning.prefill_block(
        tuning.padded_width(latent_dim, rope_dim), query.dtype, shared_memory(query.device)
    )
    packed = tuning.packed_heads(num_heads, rows)
    attend_with_tiles[num_heads // packed, tiles.shape[0] * width](
        query_ptr=query, entries_ptr=cache.entries, out_ptr=out, tiles_ptr=tiles,
        lengths_ptr=tiles if lengths is None else lengths, tables_ptr=cache.tables,
        table_stride=cache.tables.stride(0), block_stride=cache.block_stride, scale=scale * LOG2_E,
        NUM_HEADS=num_heads, BLOCK_SIZE=cache.entries.shape[1], LATENT=latent_dim, ROPE=rope_dim,
        CHUNK=min(tuning.CHUNK, padded(latent_dim)), PADDED_ROPE=padded(rope_dim), PACKED=packed, ROWS=rows,
        TOKENS=tokens, STAGES=stages,
        NEWEST=lengths is not None, WIDTH=width, num_warps=warps,
    )  # fmt: skip


GATHERED_AT_A_TIME = 16


def suits_roles(sizes: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> bool:
    """True if warps of three roles attend to expanded heads of these rope_dim, nope_dim and value_dim: DeepSeek's, in 16 bits, on Hopper."""
    return sizes == (64, 128, 128) and dtype.itemsize == 2 and has_wgmma(device)


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
        entries_ptr=cache.entries, gathered_ptr=gathered, tables_ptr=cache.tables, spans_ptr=spans,
        table_stride=cache.tables.stride(0), block_stride=cache.block_stride,
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
    sums: SplitScratch,
    scale: float,
    blocks: BlockSizes | None = None,
    taken: Tensor | None = None,
) -> None:
    """Attend with the queries of each tile to the keys of its chunk's span up to each query's own.

    A chunk's spans come in rising order, in one call each. The first one begins at position 0; a tile's output is written in
    the call whose span holds its last query's position. For the same keys and values bits do not depend on the cuts between
    tiles and spans.

    Args:
        query: [T, num_heads, nope_dim + rope_dim], contiguous except the stride of the tokens; rotated.
        expanded: [keys, num_heads, nope_dim + value_dim], contiguous: keys without position, and values.
        gathered: [keys, latent_dim + rope_dim], contiguous; the last rope_dim elements are all heads' rotated key.
        out: [T, num_heads, value_dim], contiguous, written for the queries of the tiles and nowhere else.
        tiles: int32 [tiles, 4], contiguous: chunk, index of the first query in the step, number of queries, position
            of the first query. At most `blocks.rows` queries each.
        spans: as for `gather_entries_into`, one of each chunk, at most; they begin at multiples of `blocks.keys`.
        sums: of every (query, head) over earlier rounds, kept from call to call; written where a tile has keys to come.
        scale: positive, what scores are multiplied with.
        blocks: sizes, by default `expanded_block` for the heads and dtype; `ROLES` for warps of three roles, which heads must suit. Their bits are
            others, and depend on the cuts between spans.
        taken: int32 [1], zero, for `ROLES`: what their programs have taken, and zero again once they have ended.
    """
    (_, num_heads, query_dim), value_dim = query.shape, out.shape[2]
    nope_dim = expanded.shape[2] - value_dim
    rope_dim = query_dim - nope_dim
    if blocks == ROLES:
        heads = expanded.flatten(1)
        box = [ROLES.keys, roles.CHUNK.value], roles.SWIZZLED.value
        keys = TensorDescriptor.from_tensor(heads, *box)
        rotated = TensorDescriptor.from_tensor(gathered[:, -rope_dim:], *box)
        box = [ROLES.rows, 1, roles.CHUNK.value], roles.SWIZZLED_HEADS.value
        queries = TensorDescriptor.from_tensor(query, *box)
        items = len(tiles) * num_heads
        roles.prefill_attention_by_roles_kernel[(min(items, multiprocessors(query.device)),)](
            query=queries, keys=keys, rotated=rotated, values=None, out_ptr=out, accs_ptr=sums.accs, ms_ptr=sums.ms, ls_ptr=sums.ls,
            tiles_ptr=tiles, tables_ptr=spans, table_stride=spans.stride(0), block_rows=1, items=items, counter_ptr=taken, scale=scale * LOG2_E, inner=None,
            NUM_HEADS=num_heads, NUM_KV_HEADS=num_heads, HEAD_DIM=value_dim, BLOCK_SIZE=2**30, WINDOW=0,
            PACKED=1, ROWS=ROLES.rows, KEYS=ROLES.keys, STAGES=ROLES.stages, num_warps=ROLES.warps,
        )  # fmt: skip
        return
    sizes = rope_dim, nope_dim, value_dim, query.dtype, shared_memory(query.device)
    rows, keys, warps, stages = blocks or tuning.expanded_block(*sizes)
    attend_expanded[num_heads, len(tiles)](
        query_ptr=query, expanded_ptr=expanded, entries_ptr=gathered, out_ptr=out, accs_ptr=sums.accs,
        ms_ptr=sums.ms, ls_ptr=sums.ls, tiles_ptr=tiles, spans_ptr=spans,
        query_token=query.stride(0), scale=scale * LOG2_E,
        NUM_HEADS=num_heads, LATENT=gathered.shape[1] - rope_dim, NOPE=nope_dim, ROPE=rope_dim,
        VALUE=value_dim, PADDED_NOPE=padded(nope_dim), PADDED_ROPE=padded(rope_dim),
        PADDED_VALUE=padded(value_dim), ROWS=rows, KEYS=keys, STAGES=stages, num_warps=warps,
    )  # fmt: skip


_TOKENS = 16
_COLUMNS = 64
_DEPTH = 128
_WARPS = 4


def head_linear(
    x: Tensor, weight: Tensor, out: Tensor, *, invariant: bool = False, pdl: bool = False
) -> None:
    """Each head's product out[:, h] = x[:, h] @ weight[h], for few tokens.

    Args:
        x: [T, heads, K], last dimension contiguous.
        weight: [heads, K, N], any strides.
        out: [T, heads, N], last dimension contiguous, overwritten.
        invariant: compute a token's bits from its own elements alone, however many tokens there are.
        pdl: see `nanoserve.kernels.device.pdl`. The weight is read before the wait.
    """
    (num_tokens, heads, depth), width = x.shape, weight.shape[2]
    if not num_tokens:
        return
    # One tile of 64, part of it empty, reads the weight once where three or four of 16 read it as often; in float32 it would compile for long.
    is_tall = num_tokens > 2 * _TOKENS and x.element_size() == 2 and not invariant
    tokens = 4 * _TOKENS if is_tall else _TOKENS
    # Narrower tiles of long columns, so that there are as many programs on the way back to the values.
    columns = min(_COLUMNS, max(16, triton.next_power_of_2(width) // 4))
    head_linear_kernel[heads, triton.cdiv(width, columns), triton.cdiv(num_tokens, tokens)](
        x_ptr=x, weight_ptr=weight, out_ptr=out,
        num_tokens=num_tokens, x_token=x.stride(0), x_head=x.stride(1), weight_head=weight.stride(0),
        weight_k=weight.stride(1), weight_n=weight.stride(2), out_token=out.stride(0), out_head=out.stride(1),
        K=depth, N=width, TOKENS=tokens, COLUMNS=columns,
        DEPTH=min(_DEPTH, max(16, triton.next_power_of_2(depth))),
        PDL=pdl, num_warps=_WARPS, **launch_options(pdl),
    )  # fmt: skip
