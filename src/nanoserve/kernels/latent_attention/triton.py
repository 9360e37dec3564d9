"""Latent attention in Triton: tokens that decode, in splits, and tiles of queries in the manner of FlashAttention-2 (Dao 2023).

A tile of entries is loaded once: transposed it is the keys, and its latent half the values. Rows of the score matrix are
heads, or pairs of a query and a head. The softmax is online (Milakov and Gimelshein 2018). Splits of a decoding row leave
an unnormalised sum, its maximum and its weight (flash-decoding, Dao et al. 2023); another kernel adds them up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.triton_attention import NOTHING, load_part


@triton.jit
def visit_tokens(
    state, latent_query, rope_query, positions, entries_ptr, table_ptr, block_stride, begin, end, last_visible,
    scale, MASKED: tl.constexpr, BLOCK_SIZE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, PADDED_LATENT: tl.constexpr,
    PADDED_ROPE: tl.constexpr, TOKENS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Fold the entries at positions [begin, end) into the running softmax; MASKED unless every score row sees all of them.

    State: of each score row the largest scaled score so far, the sum of weights relative to it, and the weighted latents.
    Slots behind `last_visible` are not even read: their weight is zero, but zero times NaN is NaN. Table entries are
    read one visit ahead, or they would share the software pipeline with the entries. The explicit `fma` keeps the
    arithmetic the same whether a visit is masked or not. Block and place are multiplied apart: Triton 3.6 takes the product
    of their sum for aligned to 16 elements whatever an entry's size, and would load more at a time than is aligned.
    """
    best, total, gathered = state
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
        highest = tl.maximum(best, tl.max(scores, 1) * scale)
        weights = tl.exp2(tl.fma(scores, scale, -highest[:, None]))
        correction = tl.exp2(best - highest)
        total = tl.fma(total, correction, tl.sum(weights, 1))
        gathered = tl.dot(
            weights.to(latents.dtype), latents, gathered * correction[:, None], input_precision="ieee"
        )
        best = highest
    return best, total, gathered


@triton.jit(do_not_specialize=["table_stride"])
def attend_to_rows(
    query_ptr, entries_ptr, out_ptr, totals_ptr, tops_ptr, weights_ptr, batch_rows_ptr, lengths_ptr, tables_ptr,
    table_stride, block_stride, scale,
    NUM_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    PADDED_LATENT: tl.constexpr, PADDED_ROPE: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr, STAGES: tl.constexpr,
    SPLIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (groups of HEADS heads, places, splits). Whole tiles to each split; the last splits may be left with none."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    place = tl.program_id(1)
    split = tl.program_id(2)
    row = tl.load(batch_rows_ptr + place)
    length = tl.load(lengths_ptr + row)
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    share = tl.cdiv(tl.cdiv(length, TOKENS), tl.num_programs(2)) * TOKENS
    begin = split * share
    end = tl.minimum(begin + share, length)
    full = tl.maximum(end // TOKENS * TOKENS, begin)
    if PDL:
        tl.extra.cuda.gdc_wait()

    heads = tl.program_id(0) * HEADS + tl.arange(0, HEADS)
    exists = heads < NUM_HEADS
    query_ptrs = query_ptr + (place.to(tl.int64) * NUM_HEADS + heads) * (LATENT + ROPE)
    latent_query = load_part(query_ptrs, exists, LATENT, PADDED_LATENT, True)
    rope_query = load_part(query_ptrs + LATENT, exists, ROPE, PADDED_ROPE, True)
    positions = tl.zeros([HEADS], tl.int32) + (length - 1)
    best = tl.full([HEADS], NOTHING, tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    gathered = tl.zeros([HEADS, PADDED_LATENT], tl.float32)
    state = best, total, gathered
    state = visit_tokens(
        state, latent_query, rope_query, positions, entries_ptr, table_ptr, block_stride, begin, full, length - 1,
        scale, False, BLOCK_SIZE, LATENT, ROPE, PADDED_LATENT, PADDED_ROPE, TOKENS, STAGES,
    )  # fmt: skip
    best, total, gathered = visit_tokens(
        state, latent_query, rope_query, positions, entries_ptr, table_ptr, block_stride, full, end, length - 1,
        scale, True, BLOCK_SIZE, LATENT, ROPE, PADDED_LATENT, PADDED_ROPE, TOKENS, 1,
    )  # fmt: skip

    elements = tl.arange(0, PADDED_LATENT)
    results = place.to(tl.int64) * NUM_HEADS + heads
    mask = exists[:, None] & (elements < LATENT)[None, :]
    if SPLIT:
        results = results * tl.num_programs(2) + split
        tl.store(totals_ptr + results[:, None] * LATENT + elements[None, :], gathered, mask=mask)
        tl.store(tops_ptr + results, best, mask=exists)
        tl.store(weights_ptr + results, total, mask=exists)
    else:
        result = (gathered / total[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + results[:, None] * LATENT + elements[None, :], result, mask=mask)


@triton.jit(do_not_specialize=["splits"])
def add_splits(
    totals_ptr, tops_ptr, weights_ptr, out_ptr, splits,
    LATENT: tl.constexpr, ELEMENTS: tl.constexpr, PADDED_SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (places * heads, groups of ELEMENTS elements). Splits that had nothing to do left zeros."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    result = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, PADDED_SPLITS)
    elements = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    tops = tl.load(tops_ptr + result * splits + s, mask=s < splits, other=NOTHING)
    weights = tl.load(weights_ptr + result * splits + s, mask=s < splits, other=0.0)
    factors = tl.exp2(tops - tl.max(tops, axis=0))
    weight = tl.sum(weights * factors, axis=0)
    mask = (s < splits)[:, None] & (elements < LATENT)[None, :]
    places = (result * splits + s)[:, None] * LATENT + elements[None, :]
    total = tl.sum(tl.load(totals_ptr + places, mask=mask, other=0.0) * factors[:, None], axis=0)
    tl.store(
        out_ptr + result * LATENT + elements,
        (total / weight).to(out_ptr.dtype.element_ty),
        mask=elements < LATENT,
    )


@triton.jit(do_not_specialize=["tiles_ptr", "lengths_ptr", "table_stride"])
def attend_with_tiles(
    query_ptr, entries_ptr, out_ptr, tiles_ptr, lengths_ptr, tables_ptr, table_stride, block_stride, scale,
    NUM_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    PADDED_LATENT: tl.constexpr, PADDED_ROPE: tl.constexpr, PACKED: tl.constexpr, ROWS: tl.constexpr,
    TOKENS: tl.constexpr, STAGES: tl.constexpr, NEWEST: tl.constexpr,
):  # fmt: skip
    """Program (g, i): heads [g * PACKED, (g + 1) * PACKED) of tile i.

    With NEWEST, `tiles_ptr` holds rows, and tile i is the newest token of its row. Entries are visited from multiples of
    TOKENS on in rising order, and a visit in which nothing is visible to a score row changes no bit of it: so a query's
    output does not depend on which queries share its tile.
    """
    head = tl.program_id(0) * PACKED
    tile = tl.program_id(1)
    if NEWEST:
        row = tl.load(tiles_ptr + tile).to(tl.int64)
        token = tile
        count = 1
        position = tl.load(lengths_ptr + row) - 1
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

    best = tl.full([ROWS], NOTHING, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    gathered = tl.zeros([ROWS, PADDED_LATENT], tl.float32)
    state = best, total, gathered
    seen_by_all = (position + 1) // TOKENS * TOKENS
    state = visit_tokens(
        state, latent_query, rope_query, positions, entries_ptr, table_ptr, block_stride, 0, seen_by_all, last,
        scale, False, BLOCK_SIZE, LATENT, ROPE, PADDED_LATENT, PADDED_ROPE, TOKENS, STAGES,
    )  # fmt: skip
    best, total, gathered = visit_tokens(
        state, latent_query, rope_query, positions, entries_ptr, table_ptr, block_stride, seen_by_all, last + 1, last,
        scale, True, BLOCK_SIZE, LATENT, ROPE, PADDED_LATENT, PADDED_ROPE, TOKENS, STAGES,
    )  # fmt: skip
    elements = tl.arange(0, PADDED_LATENT)
    mask = exists[:, None] & (elements < LATENT)[None, :]
    result = (gathered / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + results[:, None] * LATENT + elements[None, :], result, mask=mask)
