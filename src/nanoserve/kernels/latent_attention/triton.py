"""Latent attention in Triton: tokens that decode, in splits, and tiles of queries in the manner of FlashAttention-2 (Dao 2023).

A tile of entries is loaded once: it is the keys, and its latent half the values. One side of the score matrix is tokens, the
other heads, or pairs of a query and a head. The softmax is online (Milakov and Gimelshein 2018). Splits of a decoding row leave
an unnormalised sum, its maximum and its weight (flash-decoding, Dao et al. 2023); another kernel adds them up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last
from nanoserve.kernels.device.softmax import add_values, weigh
from nanoserve.kernels.device.softmax import begin as begin_softmax
from nanoserve.kernels.device.tiles import load_chunks, load_part, load_tile


@triton.jit
def _add_scores(scores, query, entries, KEYS: tl.constexpr):
    """Scores and the products of queries [columns, ROWS] with entries [TOKENS, columns]; dimension KEYS is the tokens."""
    if KEYS == 0:
        scores = tl.dot(entries, query, scores, input_precision="ieee")
    else:
        scores = tl.dot(tl.trans(query), tl.trans(entries), scores, input_precision="ieee")
    return scores


@triton.jit
def visit_entries(
    query_ptrs, positions, entries_ptr, table_ptr, block_stride, begin, end, last_visible, scale,
    BLOCK_SIZE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, CHUNK: tl.constexpr, PADDED_ROPE: tl.constexpr,
    TOKENS: tl.constexpr, STAGES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The softmax of each of the queries over the entries at places [begin, end) up to its position: m, l, and acc in pieces (see `device.softmax`).

    Dimension KEYS of scores is the tokens: 0 where there are enough of them to be the rows of asynchronous instructions, which read entries where they
    lie, once; otherwise 1. Latents come in pieces of CHUNK columns, each with its sums. Behind `last_visible` its entry is read again, and the scores
    masked: what was never written may be NaN, and zero times NaN is NaN. Table entries are read one visit ahead, or they would share the software
    pipeline with the entries. Block and place are multiplied apart: Triton 3.6 takes the product of their sum for aligned to 16 elements whatever an
    entry's size, and would load more at a time than is aligned.
    """
    ROWS: tl.constexpr = query_ptrs.shape[0]
    CHUNKS: tl.constexpr = (LATENT + CHUNK - 1) // CHUNK
    columns = tl.arange(0, CHUNK)
    queries = load_chunks((), query_ptrs[None, :] + columns[:, None], columns[:, None], LATENT, CHUNK, "")
    rope_query = tl.trans(load_part(query_ptrs + LATENT, None, ROPE, PADDED_ROPE, False))
    m, l, acc = begin_softmax(ROWS, CHUNK)
    accs = (acc,) * CHUNKS
    i = tl.arange(0, TOKENS)
    upcoming = tl.minimum(begin + i, last_visible)
    upcoming_block = tl.load(table_ptr + upcoming // BLOCK_SIZE)
    for start in tl.range(begin, end, TOKENS, num_stages=STAGES):
        slots = upcoming_block.to(tl.int64) * block_stride + upcoming % BLOCK_SIZE * (LATENT + ROPE)
        upcoming = tl.minimum(start + TOKENS + i, last_visible)
        upcoming_block = tl.load(table_ptr + upcoming // BLOCK_SIZE)
        entry_ptrs = entries_ptr + slots
        rotated = load_part(entry_ptrs + LATENT, None, ROPE, PADDED_ROPE, False)
        latents = load_chunks((), entry_ptrs[:, None] + columns[None, :], columns[None, :], LATENT, CHUNK, "")
        scores = tl.zeros([ROWS, TOKENS] if KEYS == 1 else [TOKENS, ROWS], tl.float32)
        scores = _add_scores(scores, rope_query, rotated, KEYS)
        for c in tl.static_range(CHUNKS):
            scores = _add_scores(scores, queries[c], latents[c], KEYS)
        seen = tl.expand_dims(start + i, 1 - KEYS) <= tl.expand_dims(positions, KEYS)
        m, l, p, alpha = weigh(m, l, tl.where(seen, scores, float("-inf")), scale, KEYS)
        if KEYS == 0:
            p = tl.trans(p)
        before, accs = accs, ()
        for c in tl.static_range(CHUNKS):
            accs = accs + (add_values(before[c], alpha, p, latents[c]),)  # noqa: RUF005 - Triton's tuples know no star
    return m, l, accs


@triton.jit
def _store(out_ptr, results, exists, accs, l, LATENT: tl.constexpr):
    """Store each row's pieces, divided by its l if there is one, as a row of `out_ptr`."""
    CHUNK: tl.constexpr = accs[0].shape[1]
    for c in tl.static_range(len(accs)):
        columns = c * CHUNK + tl.arange(0, CHUNK)
        piece = accs[c] if l is None else accs[c] / l[:, None]
        ptrs = out_ptr + results[:, None] * LATENT + columns[None, :]
        tl.store(ptrs, piece.to(out_ptr.dtype.element_ty), mask=exists[:, None] & (columns < LATENT)[None, :])


@triton.jit(do_not_specialize=["table_stride"])
def attend_to_rows(
    query_ptr, entries_ptr, out_ptr, accs_ptr, ms_ptr, ls_ptr, batch_rows_ptr, lengths_ptr, tables_ptr,
    table_stride, block_stride, scale,
    NUM_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, CHUNK: tl.constexpr,
    PADDED_ROPE: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr, STAGES: tl.constexpr, KEYS: tl.constexpr,
    WIDTH: tl.constexpr, SPLIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (g, b, s): softmax(scale q e^T) e[:, :LATENT] of HEADS heads at place b, over split s of its row's entries e.

    WIDTH places have one row, for one token after the other from its newest on. Whole tiles to each split; the last splits may be left with none.
    """
    let_next_start(PDL)
    place = tl.program_id(1)
    split = tl.program_id(2)
    row = tl.load(batch_rows_ptr + place // WIDTH)
    length = tl.load(lengths_ptr + row) + place % WIDTH
    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    share = tl.cdiv(tl.cdiv(length, TOKENS), tl.num_programs(2)) * TOKENS
    begin = split * share
    wait_for_last(PDL)

    heads = tl.program_id(0) * HEADS + tl.arange(0, HEADS)
    exists = heads < NUM_HEADS
    results = place.to(tl.int64) * NUM_HEADS + tl.minimum(heads, NUM_HEADS - 1)
    positions = tl.zeros([HEADS], tl.int32) + (length - 1)
    m, l, accs = visit_entries(
        query_ptr + results * (LATENT + ROPE), positions, entries_ptr, table_ptr, block_stride, begin, tl.minimum(begin + share, length), length - 1, scale,
        BLOCK_SIZE, LATENT, ROPE, CHUNK, PADDED_ROPE, TOKENS, STAGES, KEYS,
    )  # fmt: skip
    if SPLIT:
        results = results * tl.num_programs(2) + split
        tl.store(ms_ptr + results, m, mask=exists)
        tl.store(ls_ptr + results, l, mask=exists)
        _store(accs_ptr, results, exists, accs, None, LATENT)
    else:
        _store(out_ptr, results, exists, accs, l, LATENT)


@triton.jit(do_not_specialize=["tiles_ptr", "lengths_ptr", "table_stride"])
def attend_with_tiles(
    query_ptr, entries_ptr, out_ptr, tiles_ptr, lengths_ptr, tables_ptr, table_stride, block_stride, scale,
    NUM_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr,
    CHUNK: tl.constexpr, PADDED_ROPE: tl.constexpr, PACKED: tl.constexpr, ROWS: tl.constexpr,
    TOKENS: tl.constexpr, STAGES: tl.constexpr, NEWEST: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Program (g, i): softmax(scale q e^T) e[:, :LATENT] of heads [g * PACKED, (g + 1) * PACKED) of tile i; ROWS score rows.

    With NEWEST, `tiles_ptr` holds rows, and tile i is the newest token of its row, or one of WIDTH from there on. Entries are visited from multiples of
    TOKENS on in rising order, and a visit in which nothing is visible to a score row changes no bit of it: so a query's
    output does not depend on which queries share its tile.
    """
    head = tl.program_id(0) * PACKED
    tile = tl.program_id(1)
    row, token, count, position = load_tile(tiles_ptr, lengths_ptr, tile, NEWEST, WIDTH)

    # Rows past the last query repeat it, and those of an empty tile read the first; they are never stored.
    score_rows = tl.arange(0, ROWS)
    exists = score_rows // PACKED < count
    queries = tl.minimum(score_rows // PACKED, tl.maximum(count, 1) - 1)
    results = (token.to(tl.int64) + queries) * NUM_HEADS + head + score_rows % PACKED
    last = position + count - 1
    _, l, accs = visit_entries(
        query_ptr + results * (LATENT + ROPE), position + queries, entries_ptr, tables_ptr + row * table_stride, block_stride, 0, last + 1, last, scale,
        BLOCK_SIZE, LATENT, ROPE, CHUNK, PADDED_ROPE, TOKENS, STAGES, 1,
    )  # fmt: skip
    _store(out_ptr, results, exists, accs, l, LATENT)


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
