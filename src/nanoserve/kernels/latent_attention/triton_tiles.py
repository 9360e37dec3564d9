"""Attention of a tile of queries in one head over expanded keys and values, in the manner of FlashAttention-2 (Dao 2023).

The keys of a row come in spans, one after the other, because the memory in which they are expanded is bounded: what a tile
has gathered stays in memory between them, in float32, so that the cuts between spans change no bit. Keys are visited KEYS at
a time from a multiple of KEYS on; a visit in which a query sees nothing changes nothing of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.softmax import NOTHING, add_values, weigh
from nanoserve.kernels.device.tiles import load_part


@triton.jit
def visit_keys(
    state, nope_query, rope_query, positions, expanded_ptr, rotated_ptr, begin, end, last_visible, scale,
    MASKED: tl.constexpr, EXPANDED: tl.constexpr, WIDTH: tl.constexpr, NOPE: tl.constexpr, ROPE: tl.constexpr,
    VALUE: tl.constexpr, PADDED_NOPE: tl.constexpr, PADDED_ROPE: tl.constexpr, PADDED_VALUE: tl.constexpr,
    KEYS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Fold the keys at positions [begin, end) into the running softmax; MASKED unless every query sees all of them.

    Keys behind `last_visible` are not even read: their weight is zero, but zero times NaN is NaN. The explicit `fma` keeps
    the arithmetic the same whether a visit is masked or not.
    """
    m, l, acc = state
    for start in tl.range(begin, end, KEYS, num_stages=STAGES):
        places = start + tl.arange(0, KEYS)
        exists = places <= last_visible
        key_ptrs = expanded_ptr + places.to(tl.int64) * EXPANDED
        nope = load_part(key_ptrs, exists, NOPE, PADDED_NOPE, MASKED)
        rotated = load_part(rotated_ptr + places.to(tl.int64) * WIDTH, exists, ROPE, PADDED_ROPE, MASKED)
        scores = tl.dot(nope_query, tl.trans(nope), input_precision="ieee")
        scores = tl.dot(rope_query, tl.trans(rotated), scores, input_precision="ieee")
        if MASKED:
            scores = tl.where(places[None, :] <= positions[:, None], scores, float("-inf"))
        m, l, p, alpha = weigh(m, l, scores, scale)
        value = load_part(key_ptrs + NOPE, exists, VALUE, PADDED_VALUE, MASKED)
        acc = add_values(acc, alpha, p, value)
    return m, l, acc


@triton.jit(do_not_specialize=["tiles_ptr", "spans_ptr"])
def attend_expanded(
    query_ptr, expanded_ptr, entries_ptr, out_ptr, accs_ptr, ms_ptr, ls_ptr, tiles_ptr, spans_ptr,
    query_token, scale,
    NUM_HEADS: tl.constexpr, LATENT: tl.constexpr, NOPE: tl.constexpr, ROPE: tl.constexpr, VALUE: tl.constexpr,
    PADDED_NOPE: tl.constexpr, PADDED_ROPE: tl.constexpr, PADDED_VALUE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Program (h, i): softmax(scale q K^T) V of head h of tile i, over the span that its chunk has in this round.

    Queries [ROWS, PADDED_NOPE] and [ROWS, PADDED_ROPE], keys as [KEYS, ...] of both, values and acc [..., PADDED_VALUE].
    """
    head = tl.program_id(0)
    tile = tl.program_id(1)
    chunk = tl.load(tiles_ptr + tile * 4)
    token = tl.load(tiles_ptr + tile * 4 + 1).to(tl.int64)
    count = tl.load(tiles_ptr + tile * 4 + 2)
    position = tl.load(tiles_ptr + tile * 4 + 3)
    begin = tl.load(spans_ptr + chunk * 4 + 1)
    end = tl.load(spans_ptr + chunk * 4 + 2)
    place = tl.load(spans_ptr + chunk * 4 + 3)
    last = position + count - 1
    if (begin < end) & (begin <= last):
        EXPANDED: tl.constexpr = NUM_HEADS * (NOPE + VALUE)
        WIDTH: tl.constexpr = LATENT + ROPE
        rows = tl.arange(0, ROWS)
        exists = rows < count
        positions = tl.minimum(position + rows, last)
        tokens = token + rows
        query_ptrs = query_ptr + tokens * query_token + head * (NOPE + ROPE)
        nope_query = load_part(query_ptrs, exists, NOPE, PADDED_NOPE, True)
        rope_query = load_part(query_ptrs + NOPE, exists, ROPE, PADDED_ROPE, True)

        results = tokens * NUM_HEADS + head
        elements = tl.arange(0, PADDED_VALUE)
        inside = exists[:, None] & (elements < VALUE)[None, :]
        places = results[:, None] * VALUE + elements[None, :]
        before = exists & (begin > 0)
        m = tl.load(ms_ptr + results, mask=before, other=NOTHING)
        l = tl.load(ls_ptr + results, mask=before, other=0.0)
        acc = tl.load(accs_ptr + places, mask=inside & (begin > 0), other=0.0)
        state = m, l, acc

        # Where position 0 would be, so that a span's keys are found by their positions.
        origin = place.to(tl.int64) - begin
        span_ptr = expanded_ptr + origin * EXPANDED + head * (NOPE + VALUE)
        rotated_ptr = entries_ptr + origin * WIDTH + LATENT
        end = tl.minimum(end, last + 1)
        seen_by_all = tl.maximum(begin, tl.minimum(end, (position + 1) // KEYS * KEYS))
        state = visit_keys(
            state, nope_query, rope_query, positions, span_ptr, rotated_ptr, begin, seen_by_all, last, scale,
            False, EXPANDED, WIDTH, NOPE, ROPE, VALUE, PADDED_NOPE, PADDED_ROPE, PADDED_VALUE, KEYS, STAGES,
        )  # fmt: skip
        m, l, acc = visit_keys(
            state, nope_query, rope_query, positions, span_ptr, rotated_ptr, seen_by_all, end, last, scale,
            True, EXPANDED, WIDTH, NOPE, ROPE, VALUE, PADDED_NOPE, PADDED_ROPE, PADDED_VALUE, KEYS, STAGES,
        )  # fmt: skip
        if end <= last:
            tl.store(ms_ptr + results, m, mask=exists)
            tl.store(ls_ptr + results, l, mask=exists)
            tl.store(accs_ptr + places, acc, mask=inside)
        else:
            tl.store(out_ptr + places, (acc / l[:, None]).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["spans_ptr", "table_stride"])
def gather_entries(
    entries_ptr, gathered_ptr, tables_ptr, spans_ptr, table_stride, block_stride,
    BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr, PADDED_WIDTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Program (i, s): TOKENS entries of span s, from its i-th group on, one behind the other."""
    span_ptr = spans_ptr + tl.program_id(1) * 4
    row = tl.load(span_ptr).to(tl.int64)
    begin = tl.load(span_ptr + 1)
    count = tl.load(span_ptr + 2) - begin
    first = tl.program_id(0) * TOKENS
    if first < count:
        offsets = first + tl.arange(0, TOKENS)
        exists = offsets < count
        positions = begin + offsets
        block = tl.load(tables_ptr + row * table_stride + positions // BLOCK_SIZE, mask=exists, other=0)
        # Block and place are multiplied apart, see `latent_attention`.
        sources = block.to(tl.int64) * block_stride + positions % BLOCK_SIZE * WIDTH
        targets = (tl.load(span_ptr + 3) + offsets).to(tl.int64) * WIDTH
        elements = tl.arange(0, PADDED_WIDTH)
        inside = exists[:, None] & (elements < WIDTH)[None, :]
        entries = tl.load(entries_ptr + sources[:, None] + elements[None, :], mask=inside)
        tl.store(gathered_ptr + targets[:, None] + elements[None, :], entries, mask=inside)
