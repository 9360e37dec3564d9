"""A token, a row of logits or a row of the batch per program."""

from __future__ import annotations

import triton
import triton.language as tl

BEYOND_ALL_TOKENS = tl.constexpr(2**31 - 1)


@triton.jit
def _norm(x, weight_ptr, eps, ks, K: tl.constexpr):
    """The RMS norm of a vector [BLOCK] of K elements, in float32."""
    x = x.to(tl.float32)
    weight = tl.load(weight_ptr + ks, mask=ks < K, other=0.0).to(tl.float32)
    return x * tl.rsqrt(tl.sum(x * x, 0) / K + eps) * weight


@triton.jit(do_not_specialize=["tokens_width"])
def enter_kernel(
    tokens_ptr, rows_ptr, positions_ptr, embedding_ptr, states_ptr, token_norm_ptr, state_norm_ptr, out_ptr, tokens_width,
    scale, eps,
    NEWEST: tl.constexpr, WIDTH: tl.constexpr, KEEPS_NORMED: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program t: out[t] = norm(embedding of the token behind that of place t), norm(states[t]), which KEEPS_NORMED puts in the state's place.

    Rows and positions are as in `copies.triton.embed_kernel`; a vector is one tile [BLOCK].
    """
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place // WIDTH).to(tl.int64)
    position = tl.load(positions_ptr + row) - 1 + place % WIDTH if NEWEST else tl.load(positions_ptr + place)
    token = tl.maximum(tl.load(tokens_ptr + row * tokens_width + position + 1), 0).to(tl.int64)
    ks = tl.arange(0, BLOCK)
    vector = tl.load(embedding_ptr + token * K + ks, mask=ks < K, other=0.0)
    if scale is not None:
        vector = (vector.to(tl.float32) * scale).to(vector.dtype)
    state_ptrs = states_ptr + place * K + ks
    state = tl.load(state_ptrs, mask=ks < K, other=0.0)
    dtype = out_ptr.dtype.element_ty
    normed = _norm(state, state_norm_ptr, eps, ks, K).to(dtype)
    out_ptr += place * (2 * K) + ks
    tl.store(out_ptr, _norm(vector, token_norm_ptr, eps, ks, K).to(dtype), mask=ks < K)
    tl.store(out_ptr + K, normed, mask=ks < K)
    if KEEPS_NORMED:
        tl.store(state_ptrs, normed, mask=ks < K)


@triton.jit(do_not_specialize=["tokens_width", "ahead", "next_ahead"])
def guess_kernel(
    logits_ptr, token_ids_ptr, rows_ptr, tokens_ptr, tokens_width, lengths_ptr, limits_ptr, takes_drafts_ptr, ends_ptr, ahead,
    next_ahead, VOCAB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program b: the likeliest of VOCAB tokens, BLOCK at a time, is written `ahead` of the end of row b of the batch.

    Each lane keeps its first largest logit, so the smallest id among equals wins, as in `torch.argmax`.
    """
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    winner = tl.full([BLOCK], BEYOND_ALL_TOKENS, tl.int32)
    for start in range(0, VOCAB, BLOCK):
        ids = start + lanes
        values = tl.load(logits_ptr + place * VOCAB + ids, mask=ids < VOCAB, other=float("-inf")).to(
            tl.float32
        )
        values = tl.where(values == values, values, float("-inf"))  # noqa: PLR0124 - NaN is not
        winner = tl.where(values > best, ids, winner)
        best = tl.maximum(best, values)
    found = tl.min(tl.where(best == tl.max(best, 0), winner, BEYOND_ALL_TOKENS), 0)
    # Where no logit is a number there is no winner, and any token will do.
    token = tl.load(token_ids_ptr + tl.minimum(found, VOCAB - 1))
    length = tl.load(lengths_ptr + row)
    takes = tl.load(takes_drafts_ptr + row)
    tl.store(
        tokens_ptr + row * tokens_width + length + ahead, tl.where(takes == 1, token, -1), mask=takes < 2
    )
    tl.store(ends_ptr + row, tl.minimum(length + next_ahead, tl.load(limits_ptr + row)))


@triton.jit
def keep_kernel(
    states_ptr, rows_ptr, lengths_ptr, ends_ptr, kept_ptr,
    COUNTED: tl.constexpr, WIDTH: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program b: the state of the last but one token of row b of the batch, out of its WIDTH ones; where COUNTED, of so many as it has gained."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + place).to(tl.int64)
    length = tl.load(lengths_ptr + row)
    gained = length - tl.load(ends_ptr + row) if COUNTED else 1
    if gained > 0:
        ks = tl.arange(0, BLOCK)
        state = tl.load(states_ptr + (place * WIDTH + gained - 1) * K + ks, mask=ks < K)
        tl.store(kept_ptr + row * K + ks, state, mask=ks < K)
        tl.store(ends_ptr + row, length)
