"""Chunks of the gated delta rule in Triton, as matrix products over tiles of up to 64 tokens (the WY form of Yang et al. 2024).

Tiles lie at multiples of 64 of a row's positions, so a row that is cut there computes what it would have computed whole. In a
tile, with g summed up since its beginning and S the state before it, the u of its tokens, which write k u^T to the state, follow from
one triangular system:

    (1 + A) u = beta (v - exp(g) k S),    A = beta (k k^T) exp(g - g^T) below the diagonal
    o = exp(g) q S + (q k^T exp(g - g^T)) u,    with the diagonal
    S <- exp(g_last) S + (k exp(g_last - g))^T u

What does not need S is made of all tiles at once: keys, queries and values by `convolve_tiles_kernel`, the matrices
(1 + A)^-1 beta and q k^T exp(g - g^T) by `solve_tiles_kernel`. `advance_rows_kernel` then takes the states through their
tiles in order.
States, decays and sums are float32; what is multiplied is rounded to the dtype of the model.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.delta_rule.triton import L2_EPS, load_span
from nanoserve.kernels.device.gates import sigmoid, silu, softplus


@triton.jit
def _convolved(
    token_ptr, recent_ptr, conv_ptr, channels, shown, steps, valid, start, near_start,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """Some channels of some of a chunk's steps after convolution and SiLU; `token_ptr` is at the chunk's first token."""
    total = tl.zeros([steps.shape[0], channels.shape[0]], tl.float32)
    for back in tl.static_range(TAPS):
        taps = tl.load(conv_ptr + channels * TAPS + (TAPS - 1 - back), mask=shown, other=0.0).to(tl.float32)
        own = valid & (steps >= back)
        at = (steps - back)[:, None] * WIDTH + channels[None, :]
        x = tl.load(token_ptr + at, mask=own[:, None] & shown[None, :], other=0.0).to(tl.float32)
        if near_start:
            before = valid & (steps < back) & (start + steps >= back)
            at = ((start + steps - back) % TAPS)[:, None] * CHANNELS + channels[None, :]
            x += tl.load(recent_ptr + at, mask=before[:, None] & shown[None, :], other=0.0)
        total += x * taps[None, :]
    return silu(total)


@triton.jit
def _inverse(system, TILE: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr):
    """(1 + system)^-1 of a matrix [TILE, TILE], TILE = 2^LEVELS, that is zero on and above the diagonal, by substitution of blocks.

    Two inverted neighbours X and Y on the diagonal and what couples them below it, C, are the inverted block of twice
    the size with -Y C X below the diagonal.
    """
    index = tl.arange(0, TILE)
    pair = index // 2
    inverse = tl.where(index[:, None] == index[None, :], 1.0, 0.0)
    inverse -= tl.where(pair[:, None] == pair[None, :], system, 0.0)
    for level in tl.static_range(1, LEVELS):
        part, pair = index // (1 << level), index // (2 << level)
        coupled = (pair[:, None] == pair[None, :]) & (part[:, None] != part[None, :])
        half = tl.dot(inverse, tl.where(coupled, system, 0.0), input_precision=PRECISION)
        inverse -= tl.dot(half, inverse, input_precision=PRECISION)
    return inverse


@triton.jit
def _find_tile(spans_ptr, num_spans, tile, TILE: tl.constexpr):
    """Which chunk a tile of all of them is of, -1 if there are fewer, and which of that chunk's it is."""
    chunk, number = -1, 0
    for n in range(num_spans):
        start = tl.load(spans_ptr + 4 * n + 3)
        tiles = (start + tl.load(spans_ptr + 4 * n + 2) - 1) // TILE - start // TILE + 1
        inside = (tile >= 0) & (tile < tiles)
        chunk, number = tl.where(inside, n, chunk), tl.where(inside, tile, number)
        tile -= tiles
    return chunk, number


@triton.jit(do_not_specialize=["num_spans", "table_stride"])
def convolve_tiles_kernel(
    projected_ptr, heads_ptr, values_ptr, recent_ptr, conv_ptr, spans_ptr, num_spans, tables_ptr, table_stride, scale,
    KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, KEYS: tl.constexpr,
    INNER: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
    TAPS: tl.constexpr, PADDED_KEY: tl.constexpr, PADDED_VALUE: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Program (p, h): head h of a part of a tile, of all q heads, then k heads, then v heads."""
    head = tl.program_id(1)
    chunk, number = _find_tile(spans_ptr, num_spans, tl.program_id(0) // (TILE // PART), TILE)
    if chunk < 0:
        return
    row, first, count, start = load_span(spans_ptr, chunk)
    begin = number * TILE - start % TILE + (tl.program_id(0) % (TILE // PART)) * PART
    steps, near_start = begin + tl.arange(0, PART), begin < TAPS - 1
    valid = (steps >= 0) & (steps < count)
    token_ptr = projected_ptr + first * WIDTH
    recent_ptr += tl.load(tables_ptr + row * table_stride).to(tl.int64) * (TAPS * CHANNELS)
    if head < 2 * KEY_HEADS:
        keys = tl.arange(0, PADDED_KEY)
        in_key, key_channels = keys < KEY_DIM, head * KEY_DIM + keys
        k = _convolved(
            token_ptr, recent_ptr, conv_ptr, key_channels, in_key, steps, valid, start, near_start, WIDTH, CHANNELS, TAPS
        )  # fmt: skip
        length = tl.rsqrt(tl.sum(k * k, 1) + L2_EPS) * tl.where(head < KEY_HEADS, scale, 1.0)
        key_ptrs = heads_ptr + first * (2 * KEYS) + (steps[:, None] * (2 * KEYS) + key_channels[None, :])
        k = (k * length[:, None]).to(heads_ptr.dtype.element_ty)
        tl.store(key_ptrs, k, mask=valid[:, None] & in_key[None, :])
    else:
        values = tl.arange(0, PADDED_VALUE)
        in_value, value_channels = values < VALUE_DIM, (head - 2 * KEY_HEADS) * VALUE_DIM + values
        v = _convolved(
            token_ptr, recent_ptr, conv_ptr, 2 * KEYS + value_channels, in_value, steps, valid, start, near_start,
            WIDTH, CHANNELS, TAPS,
        )  # fmt: skip
        value_ptrs = values_ptr + first * INNER + (steps[:, None] * INNER + value_channels[None, :])
        tl.store(value_ptrs, v.to(values_ptr.dtype.element_ty), mask=valid[:, None] & in_value[None, :])


@triton.jit(do_not_specialize=["num_spans"])
def solve_tiles_kernel(
    heads_ptr, projected_ptr, systems_ptr, g_ptr, decay_log_ptr, decay_bias_ptr, spans_ptr, num_spans,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_KEY: tl.constexpr, TILE: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (t, h): the two matrices [TILE, TILE] and the g [TILE] of value head h in tile t."""
    head = tl.program_id(1)
    chunk, number = _find_tile(spans_ptr, num_spans, tl.program_id(0), TILE)
    if chunk < 0:
        return
    _, first, count, start = load_span(spans_ptr, chunk)
    index, keys = tl.arange(0, TILE), tl.arange(0, PADDED_KEY)
    steps = number * TILE - start % TILE + index
    valid = (steps >= 0) & (steps < count)
    query_ptrs = heads_ptr + first * (2 * KEYS) + head // (VALUE_HEADS // KEY_HEADS) * KEY_DIM
    query_ptrs = query_ptrs + (steps[:, None] * (2 * KEYS) + keys[None, :])
    shown = valid[:, None] & (keys < KEY_DIM)[None, :]
    k, q = tl.load(query_ptrs + KEYS, mask=shown, other=0.0), tl.load(query_ptrs, mask=shown, other=0.0)
    b_ptrs = projected_ptr + first * WIDTH + (WIDTH - 2 * VALUE_HEADS + head) + steps * WIDTH
    beta = sigmoid(tl.load(b_ptrs, mask=valid, other=0.0).to(tl.float32))
    a = tl.load(b_ptrs + VALUE_HEADS, mask=valid, other=0.0).to(tl.float32)
    a += tl.load(decay_bias_ptr + head)
    a = softplus(a)
    g = tl.cumsum(tl.where(valid, -tl.exp(tl.load(decay_log_ptr + head)) * a, 0.0), 0)
    tl.store(g_ptr + (first + steps) * VALUE_HEADS + head, g, mask=valid)
    before = index[:, None] >= index[None, :]
    between = tl.exp(tl.where(before, g[:, None] - g[None, :], 0.0))
    system_ptrs = systems_ptr + (first * VALUE_HEADS + head) * (2 * TILE)
    system_ptrs = system_ptrs + (steps[:, None] * (VALUE_HEADS * 2 * TILE) + index[None, :])
    scores = tl.where(before, tl.dot(q, tl.trans(k), input_precision=PRECISION) * between, 0.0)
    tl.store(system_ptrs + TILE, scores.to(systems_ptr.dtype.element_ty), mask=valid[:, None])
    system = tl.dot(k, tl.trans(k), input_precision=PRECISION) * between
    system = tl.where(index[:, None] > index[None, :], system, 0.0) * beta[:, None]
    inverse = _inverse(system, TILE, LEVELS, PRECISION) * beta[None, :]
    tl.store(system_ptrs, inverse.to(systems_ptr.dtype.element_ty), mask=valid[:, None])


@triton.jit(do_not_specialize=["table_stride"])
def advance_rows_kernel(
    heads_ptr, systems_ptr, g_ptr, projected_ptr, norm_ptr, out_ptr, sums_ptr,
    spans_ptr, tables_ptr, table_stride, eps,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr, INNER: tl.constexpr, WIDTH: tl.constexpr,
    PADDED_KEY: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr,
    WHOLE: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Program (n, h, c): some columns of value head h through chunk n; `out_ptr` has the values, and gets the results.

    The results are normed and gated if one program has all columns of them: WHOLE.
    """
    GROUP: tl.constexpr = VALUE_HEADS // KEY_HEADS
    head = tl.program_id(1)
    row, first, count, start = load_span(spans_ptr, tl.program_id(0))
    slot = tl.load(tables_ptr + row * table_stride).to(tl.int64)
    keys, index = tl.arange(0, PADDED_KEY), tl.arange(0, TILE)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    in_key, in_value = keys < KEY_DIM, columns < VALUE_DIM
    state_ptrs = sums_ptr + (slot * VALUE_HEADS + head) * (KEY_DIM * VALUE_DIM)
    state_ptrs = state_ptrs + (keys[:, None] * VALUE_DIM + columns[None, :])
    in_state = in_key[:, None] & in_value[None, :]
    state = tl.load(state_ptrs, mask=in_state & (start > 0), other=0.0)
    heads_ptr += first * (2 * KEYS) + (head // GROUP) * KEY_DIM
    systems_ptr += (first * VALUE_HEADS + head) * (2 * TILE)
    g_ptr += first * VALUE_HEADS + head
    out_ptr += first * INNER + head * VALUE_DIM
    dtype = out_ptr.dtype.element_ty
    for begin in tl.range(-(start % TILE), count, TILE, num_stages=STAGES):
        steps = begin + index
        valid = (steps >= 0) & (steps < count)
        query_ptrs = heads_ptr + steps[:, None] * (2 * KEYS) + keys[None, :]
        shown = valid[:, None] & in_key[None, :]
        k = tl.load(query_ptrs + KEYS, mask=shown, other=0.0)
        q = tl.load(query_ptrs, mask=shown, other=0.0)
        system_ptrs = systems_ptr + steps[:, None] * (VALUE_HEADS * 2 * TILE) + index[None, :]
        inverse = tl.load(system_ptrs, mask=valid[:, None], other=0.0)
        scores = tl.load(system_ptrs + TILE, mask=valid[:, None], other=0.0)
        g = tl.load(g_ptr + steps * VALUE_HEADS, mask=valid, other=0.0)
        out_ptrs = out_ptr + steps[:, None] * INNER + columns[None, :]
        in_out = valid[:, None] & in_value[None, :]
        v = tl.load(out_ptrs, mask=in_out, other=0.0).to(tl.float32)
        decay, last = tl.exp(g)[:, None], tl.min(g, 0)
        rounded = state.to(dtype)
        held = tl.dot(k, rounded, input_precision=PRECISION) * decay  # exp(g) k S
        u = tl.dot(inverse, (v - held).to(dtype), input_precision=PRECISION)
        o = tl.dot(q, rounded, input_precision=PRECISION) * decay
        o = tl.dot(scores, u.to(dtype), o, input_precision=PRECISION)
        u *= tl.exp(last - g)[:, None]
        state = tl.dot(tl.trans(k), u.to(dtype), state * tl.exp(last), input_precision=PRECISION)
        if WHOLE:
            norm = tl.load(norm_ptr + columns, mask=in_value, other=0.0).to(tl.float32)
            gate_ptrs = (
                projected_ptr
                + (first + steps)[:, None] * WIDTH
                + (2 * KEYS + INNER + head * VALUE_DIM + columns)[None, :]
            )
            gate = tl.load(gate_ptrs, mask=in_out, other=0.0).to(tl.float32)
            o *= tl.rsqrt(tl.sum(o * o, 1) / VALUE_DIM + eps)[:, None]
            o = o * norm[None, :] * silu(gate)
        tl.store(out_ptrs, o.to(dtype), mask=in_out)
    tl.store(state_ptrs, state, mask=in_state)


@triton.jit(do_not_specialize=["num_tokens"])
def norm_and_gate_kernel(
    projected_ptr, norm_ptr, out_ptr, num_tokens, eps,
    VALUE_HEADS: tl.constexpr, VALUE_DIM: tl.constexpr, WIDTH: tl.constexpr, PADDED_VALUE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Program b: norm, weigh and gate, in place, the results of some (token, value head)."""
    INNER: tl.constexpr = VALUE_HEADS * VALUE_DIM
    each = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    token, head = each // VALUE_HEADS, each % VALUE_HEADS
    values = tl.arange(0, PADDED_VALUE)
    shown = (token < num_tokens)[:, None] & (values < VALUE_DIM)[None, :]
    out_ptrs = out_ptr + (each * VALUE_DIM)[:, None] + values[None, :]
    gate_ptrs = (
        projected_ptr
        + (token * WIDTH + (WIDTH - INNER - 2 * VALUE_HEADS) + head * VALUE_DIM)[:, None]
        + values[None, :]
    )
    o = tl.load(out_ptrs, mask=shown, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptrs, mask=shown, other=0.0).to(tl.float32)
    norm = tl.load(norm_ptr + values, mask=values < VALUE_DIM, other=0.0).to(tl.float32)
    o *= tl.rsqrt(tl.sum(o * o, 1) / VALUE_DIM + eps)[:, None]
    o = o * norm[None, :] * silu(gate)
    tl.store(out_ptrs, o.to(out_ptr.dtype.element_ty), mask=shown)
