"""Latent attention in Triton: tokens that decode, in splits, and tiles of queries in the manner of FlashAttention-2 (Dao 2023).

A tile of entries is loaded once: transposed it is the keys, and its latent half the values. Rows of the score matrix are
heads, or pairs of a query and a head. The softmax is online (Milakov and Gimelshein 2018). Splits of a decoding row leave
an unnormalised sum, its maximum and its weight (flash-decoding, Dao et al. 2023); another kernel adds them up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last
from nanoserve.kernels.device.softmax import NOTHING, merge, visit
from nanoserve.kernels.device.softmax import begin as begin_softmax
from nanoserve.kernels.device.tiles import load_part


@triton.jit
def visit_tokens(
    state, latent_query, rope_query, positions, entries_ptr, table_ptr, block_stride, begin, end, last_visible,
    scale, MASKED: tl.constexpr, BLOCK_SIZE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, PADDED_LATENT: tl.constexpr,
    PADDED_ROPE: tl.constexpr, TOKENS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Fold the entries at positions [begin, end) into the running softmax; MASKED unless every score row sees all of them.

    State: m, l and acc of each score row (see `device.softmax`).
    Slots behind `last_visible` are not even read: their weight is zero, but zero times NaN is NaN. Table entries are
    read one visit ahead, or they would share the software pipeline with the entries. The explicit `fma` keeps the
    arithmetic the same whether a visit is masked or not. Block and place are multiplied apart: Triton 3.6 takes the product
    of their sum for aligned to 16 elements whatever an entry's size, and would load more at a time than is aligned.
    """
    m, l, acc = state
    upcoming = begin + tl.arange(0, TOKENS)
    upcoming_block = tl.load(table_ptr + upcoming // BLOCK_SIZE, mask=upcoming <= last_visible, other=0)
    for start in tl.range(begin, end, TOKENS, num_stages=STAGES):
        places = start + tl.arange(0, TOKENS)
        slots = upcoming_block.to(tl.int64) * block_stride + places % BLOCK_SIZE * (LATENT + ROPE)
        upcoming = places + TOKENS
        upcoming_block = tl.load(table_ptr + upcoming // BLOCK_SIZE, mask=upcoming <= last_visible, other=0)
        exists = places <= last_visible
        latents = load_part(entries_ptr + slots, exists, LATENT, PADDED_LATENT, MASKED)
        rotated = load_part(entries_ptr + slots + LATENT, exists, ROPE, PADDED_ROPE, MASKED)
        scores = tl.dot(rope_query, tl.trans(rotated), input_precision="ieee")
        scores = tl.dot(latent_query, tl.trans(latents), scores, input_precision="ieee")
        if MASKED:
            scores = tl.where(places[None, :] <= positions[:, None], scores, float("-inf"))
        m, l, acc = visit(m, l, acc, scores, latents, scale)
    return m, l, acc


@triton.jit(do_not_specialize=["table_stride"])
def attend_to_rows(
    query_ptr, entries_ptr, out_ptr, accs_ptr, ms_ptr, ls_ptr, batch_rows_ptr, lengths_ptr, tables_ptr,
    table_stride, block_stride, scale,
    NUM_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    PADDED_LATENT: tl.constexpr, PADDED_ROPE: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr, STAGES: tl.constexpr,
    WIDTH: tl.constexpr, SPLIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (g, b, s): softmax(scale q e^T) e[:, :LATENT] of HEADS heads at place b, over split s of its row's entries e.

    WIDTH places have one row, for one token after the other from its newest on.

    Queries [HEADS, PADDED_LATENT] and [HEADS, PADDED_ROPE], entries as [TOKENS, ...] of both. Whole tiles to each
    split; the last splits may be left with none.
    """
    let_next_start(PDL)
    place = tl.program_id(1)
    split = tl.program_id(2)
    row = tl.load(batch_rows_ptr + place // WIDTH)
    length = tl.load(lengths_ptr + row) + place % WIDTH
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    share = tl.cdiv(tl.cdiv(length, TOKENS), tl.num_programs(2)) * TOKENS
    begin = split * share
    end = tl.minimum(begin + share, length)
    full = tl.maximum(end // TOKENS * TOKENS, begin)
    wait_for_last(PDL)

    heads = tl.program_id(0) * HEADS + tl.arange(0, HEADS)
    exists = heads < NUM_HEADS
    query_ptrs = query_ptr + (place.to(tl.int64) * NUM_HEADS + heads) * (LATENT + ROPE)
    latent_query = load_part(query_ptrs, exists, LATENT, PADDED_LATENT, True)
    rope_query = load_part(query_ptrs + LATENT, exists, ROPE, PADDED_ROPE, True)
    positions = tl.zeros([HEADS], tl.int32) + (length - 1)
    state = begin_softmax(HEADS, PADDED_LATENT)
    state = visit_tokens(
        state, latent_query, rope_query, positions, entries_ptr, table_ptr, block_stride, begin, full, length - 1,
        scale, False, BLOCK_SIZE, LATENT, ROPE, PADDED_LATENT, PADDED_ROPE, TOKENS, STAGES,
    )  # fmt: skip
    m, l, acc = visit_tokens(
        state, latent_query, rope_query, positions, entries_ptr, table_ptr, block_stride, full, end, length - 1,
        scale, True, BLOCK_SIZE, LATENT, ROPE, PADDED_LATENT, PADDED_ROPE, TOKENS, 1,
    )  # fmt: skip

    elements = tl.arange(0, PADDED_LATENT)
    results = place.to(tl.int64) * NUM_HEADS + heads
    mask = exists[:, None] & (elements < LATENT)[None, :]
    if SPLIT:
        results = results * tl.num_programs(2) + split
        tl.store(accs_ptr + results[:, None] * LATENT + elements[None, :], acc, mask=mask)
        tl.store(ms_ptr + results, m, mask=exists)
        tl.store(ls_ptr + results, l, mask=exists)
    else:
        result = (acc / l[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + results[:, None] * LATENT + elements[None, :], result, mask=mask)


@triton.jit(do_not_specialize=["splits"])
def add_splits(
    accs_ptr, ms_ptr, ls_ptr, out_ptr, splits,
    LATENT: tl.constexpr, ELEMENTS: tl.constexpr, PADDED_SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (i, g): out [places * heads, LATENT] at i = sum of 2^(m_s - m) acc_s / l, ELEMENTS elements. Splits that had nothing to do left zeros."""
    let_next_start(PDL)
    wait_for_last(PDL)
    result = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, PADDED_SPLITS)
    elements = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    ms = tl.load(ms_ptr + result * splits + s, mask=s < splits, other=NOTHING)
    ls = tl.load(ls_ptr + result * splits + s, mask=s < splits, other=0.0)
    m, l = merge(ms, ls)
    mask = (s < splits)[:, None] & (elements < LATENT)[None, :]
    places = (result * splits + s)[:, None] * LATENT + elements[None, :]
    acc = tl.sum(tl.load(accs_ptr + places, mask=mask, other=0.0) * tl.exp2(ms - m)[:, None], axis=0)
    tl.store(
        out_ptr + result * LATENT + elements, (acc / l).to(out_ptr.dtype.element_ty), mask=elements < LATENT
    )


@triton.jit(do_not_specialize=["tiles_ptr", "lengths_ptr", "table_stride"])
def attend_with_tiles(
    query_ptr, entries_ptr, out_ptr, tiles_ptr, lengths_ptr, tables_ptr, table_stride, block_stride, scale,
    NUM_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    PADDED_LATENT: tl.constexpr, PADDED_ROPE: tl.constexpr, PACKED: tl.constexpr, ROWS: tl.constexpr,
    TOKENS: tl.constexpr, STAGES: tl.constexpr, NEWEST: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Program (g, i): softmax(scale q e^T) e[:, :LATENT] of heads [g * PACKED, (g + 1) * PACKED) of tile i; ROWS score rows.

    With NEWEST, `tiles_ptr` holds rows, and tile i is the newest token of its row, or one of WIDTH from there on. Entries are visited from multiples of
    TOKENS on in rising order, and a visit in which nothing is visible to a score row changes no bit of it: so a query's
    output does not depend on which queries share its tile.
    """
    head = tl.program_id(0) * PACKED
    tile = tl.program_id(1)
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

    # Rows past the last query repeat its position, so that they see keys and stay finite; they are never stored.
    score_rows = tl.arange(0, ROWS)
    queries = score_rows // PACKED
    exists = queries < count
    last = position + count - 1
    positions = tl.minimum(position + queries, last)
    results = (token.to(tl.int64) + queries) * NUM_HEADS + head + score_rows % PACKED
    query_ptrs = query_ptr + results * (LATENT + ROPE)
    latent_query = load_part(query_ptrs, exists, LATENT, PADDED_LATENT, True)
    rope_query = load_part(query_ptrs + LATENT, exists, ROPE, PADDED_ROPE, True)
    table_ptr = tables_ptr + row * table_stride

    state = begin_softmax(ROWS, PADDED_LATENT)
    seen_by_all = (position + 1) // TOKENS * TOKENS
    state = visit_tokens(
        state, latent_query, rope_query, positions, entries_ptr, table_ptr, block_stride, 0, seen_by_all, last,
        scale, False, BLOCK_SIZE, LATENT, ROPE, PADDED_LATENT, PADDED_ROPE, TOKENS, STAGES,
    )  # fmt: skip
    _, l, acc = visit_tokens(
        state, latent_query, rope_query, positions, entries_ptr, table_ptr, block_stride, seen_by_all, last + 1, last,
        scale, True, BLOCK_SIZE, LATENT, ROPE, PADDED_LATENT, PADDED_ROPE, TOKENS, STAGES,
    )  # fmt: skip
    elements = tl.arange(0, PADDED_LATENT)
    mask = exists[:, None] & (elements < LATENT)[None, :]
    result = (acc / l[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + results[:, None] * LATENT + elements[None, :], result, mask=mask)


@triton.jit
def _weight_tile(weight_ptr, k, n, weight_k, weight_n, K: tl.constexpr, N: tl.constexpr):
    mask = (k < K)[:, None] & (n < N)[None, :]
    return tl.load(weight_ptr + k[:, None] * weight_k + n[None, :] * weight_n, mask=mask, other=0.0)


@triton.jit(do_not_specialize=["num_tokens"])
def head_linear_kernel(
    x_ptr, weight_ptr, out_ptr, num_tokens, x_token, x_head, weight_head, weight_k, weight_n, out_token, out_head,
    K: tl.constexpr, N: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (h, g, i): out[t, h] = x[t, h] weight[h], a tile [TOKENS, COLUMNS]; sums in steps of DEPTH, in rising order."""
    let_next_start(PDL)
    head = tl.program_id(0)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    weight_ptr += head.to(tl.int64) * weight_head
    weight = _weight_tile(weight_ptr, k, n, weight_k, weight_n, K, N)
    wait_for_last(PDL)
    tokens = (tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    exists = (tokens < num_tokens)[:, None]
    x_ptrs = x_ptr + tokens[:, None] * x_token + head * x_head
    x = tl.load(x_ptrs + k[None, :], mask=exists & (k < K)[None, :], other=0.0)
    total = tl.dot(x, weight, input_precision="ieee")
    for start in range(DEPTH, K, DEPTH):
        later = start + k
        x = tl.load(x_ptrs + later[None, :], mask=exists & (later < K)[None, :], other=0.0)
        weight = _weight_tile(weight_ptr, later, n, weight_k, weight_n, K, N)
        total = tl.dot(x, weight, total, input_precision="ieee")
    out_ptrs = out_ptr + tokens[:, None] * out_token + head * out_head + n[None, :]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=exists & (n < N)[None, :])
