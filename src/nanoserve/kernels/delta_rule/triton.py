"""The gated delta rule token by token in Triton: one program per (row, value head).

So no sum crosses programs, and the norm and gate of the result are done where it is made. Programs of one key head each
convolve its channels for themselves. What the convolution read last is written where nothing of the same launch reads it: by the
program of a newest token to the entry that no token needs any more, and after a chunk by a launch of its own.
"""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.gates import sigmoid, silu, softplus
from nanoserve.kernels.device.pdl import let_next_start, wait_for_last

L2_EPS = tl.constexpr(1e-6)


@triton.jit
def load_span(spans_ptr, chunk):
    """A chunk's row, its first token, its number of tokens, and the position of the first."""
    span_ptr = spans_ptr + chunk * 4
    row, first = tl.load(span_ptr).to(tl.int64), tl.load(span_ptr + 1).to(tl.int64)
    return row, first, tl.load(span_ptr + 2), tl.load(span_ptr + 3)


@triton.jit
def _taps(conv_ptr, channels, shown, TAPS: tl.constexpr, PADDED_TAPS: tl.constexpr):
    """The weights of some channels, [PADDED_TAPS, channels], the newest token's first."""
    back = tl.arange(0, PADDED_TAPS)
    at = channels[None, :] * TAPS + (TAPS - 1 - back)[:, None]
    mask = (back < TAPS)[:, None] & shown[None, :]
    return tl.load(conv_ptr + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _convolved(
    token_ptr, recent_ptr, taps, channels, shown, step, position,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, PADDED_TAPS: tl.constexpr,
):  # fmt: skip
    """Some channels of the chunk's `step`-th token after convolution and SiLU; inputs before the chunk come from the slot."""
    back = tl.arange(0, PADDED_TAPS)
    inside = (back < TAPS)[:, None] & shown[None, :]
    own_ptrs = token_ptr + (channels[None, :] - back[:, None] * WIDTH)
    own = tl.load(own_ptrs, mask=inside & (back <= step)[:, None], other=0.0).to(tl.float32)
    before = (back > step) & (back <= position)
    kept_ptrs = recent_ptr + ((position - back) % TAPS)[:, None] * CHANNELS + channels[None, :]
    kept = tl.load(kept_ptrs, mask=inside & before[:, None], other=0.0)
    x = tl.sum((own + kept) * taps, 0)
    return silu(x)


@triton.jit
def _keep(token_ptr, recent_ptr, channels, shown, position, CHANNELS: tl.constexpr, TAPS: tl.constexpr):
    """Write the convolution's inputs of a token into its row's slot."""
    x = tl.load(token_ptr + channels, mask=shown, other=0.0).to(tl.float32)
    tl.store(recent_ptr + (position % TAPS) * CHANNELS + channels, x, mask=shown)


@triton.jit
def _unit(x):
    return x * tl.rsqrt(tl.sum(x * x, 0) + L2_EPS)


@triton.jit(
    do_not_specialize=[
        "projected_ptr",
        "out_ptr",
        "rows_ptr",
        "lengths_ptr",
        "table_stride",
        "newest",
        "keep",
    ]
)
def delta_rule_kernel(
    projected_ptr, out_ptr, sums_ptr, recent_ptr, conv_ptr, decay_log_ptr, decay_bias_ptr, norm_ptr,
    rows_ptr, lengths_ptr, tables_ptr, table_stride, newest, keep, eps, scale,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr, INNER: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
    TAPS: tl.constexpr, PADDED_KEY: tl.constexpr, PADDED_VALUE: tl.constexpr, PADDED_TAPS: tl.constexpr,
):  # fmt: skip
    """Program (n, h): value head h of the newest token of place n, or of every token of chunk n, its state in registers.

    State [PADDED_KEY, PADDED_VALUE], q and k [PADDED_KEY], v, u and o [PADDED_VALUE]:

        S <- alpha S,  u = beta (v - S^T k),  S <- S + k u^T,  o = S^T q

    Without `keep` the state in memory stays. With `newest` `rows_ptr` has the row of each place, and else (row, first token, tokens, first position) of each chunk.
    Both are one compiled kernel, wherever their tokens lie: variants of it would be free to take sums in orders of their own.
    """
    GROUP: tl.constexpr = VALUE_HEADS // KEY_HEADS
    head = tl.program_id(1)
    if newest:
        row = tl.load(rows_ptr + tl.program_id(0)).to(tl.int64)
        first = tl.program_id(0).to(tl.int64)
        count = tl.full([], 1, tl.int32)
        start = tl.load(lengths_ptr + row) - 1
    else:
        row, first, count, start = load_span(rows_ptr, tl.program_id(0))
    slot = tl.load(tables_ptr + row * table_stride).to(tl.int64)
    keys, values = tl.arange(0, PADDED_KEY), tl.arange(0, PADDED_VALUE)
    in_key, in_value = keys < KEY_DIM, values < VALUE_DIM
    state_ptrs = sums_ptr + (slot * VALUE_HEADS + head) * (KEY_DIM * VALUE_DIM)
    state_ptrs = state_ptrs + (keys[:, None] * VALUE_DIM + values[None, :])
    in_state = in_key[:, None] & in_value[None, :]
    state = tl.load(state_ptrs, mask=in_state & (start > 0), other=0.0)
    q_channels = (head // GROUP) * KEY_DIM + keys
    k_channels = KEYS + q_channels
    v_channels = 2 * KEYS + head * VALUE_DIM + values
    q_taps = _taps(conv_ptr, q_channels, in_key, TAPS, PADDED_TAPS)
    k_taps = _taps(conv_ptr, k_channels, in_key, TAPS, PADDED_TAPS)
    v_taps = _taps(conv_ptr, v_channels, in_value, TAPS, PADDED_TAPS)
    norm = tl.load(norm_ptr + values, mask=in_value, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(decay_log_ptr + head))
    bias = tl.load(decay_bias_ptr + head)
    recent_ptr += slot * (TAPS * CHANNELS)
    for step in range(count):
        position = start + step
        token_ptr = projected_ptr + (first + step) * WIDTH
        q = _convolved(
            token_ptr, recent_ptr, q_taps, q_channels, in_key, step, position, WIDTH, CHANNELS, TAPS, PADDED_TAPS
        )  # fmt: skip
        k = _convolved(
            token_ptr, recent_ptr, k_taps, k_channels, in_key, step, position, WIDTH, CHANNELS, TAPS, PADDED_TAPS
        )  # fmt: skip
        v = _convolved(
            token_ptr, recent_ptr, v_taps, v_channels, in_value, step, position, WIDTH, CHANNELS, TAPS, PADDED_TAPS
        )  # fmt: skip
        q, k = _unit(q) * scale, _unit(k)
        b = tl.load(token_ptr + CHANNELS + INNER + head).to(tl.float32)
        a = tl.load(token_ptr + CHANNELS + INNER + VALUE_HEADS + head).to(tl.float32) + bias
        a = softplus(a)
        state *= tl.exp(-rate * a)  # alpha
        u = (v - tl.sum(state * k[:, None], 0)) / (1.0 + tl.exp(-b))
        state += k[:, None] * u[None, :]
        o = tl.sum(state * q[:, None], 0)
        o = o * tl.rsqrt(tl.sum(o * o, 0) / VALUE_DIM + eps) * norm
        gate = tl.load(token_ptr + CHANNELS + head * VALUE_DIM + values, mask=in_value, other=0.0).to(
            tl.float32
        )
        o = o * gate / (1.0 + tl.exp(-gate))
        out_ptrs = out_ptr + (first + step) * INNER + head * VALUE_DIM + values
        tl.store(out_ptrs, o.to(out_ptr.dtype.element_ty), mask=in_value)
    tl.store(state_ptrs, state, mask=in_state & (keep != 0))
    if newest:
        token_ptr = projected_ptr + first * WIDTH
        _keep(token_ptr, recent_ptr, v_channels, in_value, start, CHANNELS, TAPS)
        if head % GROUP == 0:
            _keep(token_ptr, recent_ptr, q_channels, in_key, start, CHANNELS, TAPS)
            _keep(token_ptr, recent_ptr, k_channels, in_key, start, CHANNELS, TAPS)


@triton.jit(do_not_specialize=["table_stride"])
def keep_recent_kernel(
    projected_ptr, recent_ptr, spans_ptr, tables_ptr, table_stride,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (n, b): keep the convolution's inputs of the last tokens of chunk n, for a block of channels."""
    row, first, count, start = load_span(spans_ptr, tl.program_id(0))
    slot = tl.load(tables_ptr + row * table_stride).to(tl.int64)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    for step in range(tl.maximum(count - TAPS, 0), count):
        token_ptr = projected_ptr + (first + step) * WIDTH
        recent = recent_ptr + slot * (TAPS * CHANNELS)
        _keep(token_ptr, recent, channels, channels < CHANNELS, start + step, CHANNELS, TAPS)


@triton.jit(do_not_specialize=["table_stride"])
def newest_token_kernel(
    projected_ptr, out_ptr, sums_ptr, recent_ptr, conv_ptr, decay_log_ptr, decay_bias_ptr, norm_ptr,
    rows_ptr, lengths_ptr, tables_ptr, table_stride, eps, scale,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr, INNER: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
    TAPS: tl.constexpr, PADDED_KEY: tl.constexpr, PADDED_VALUE: tl.constexpr, PADDED_TAPS: tl.constexpr,
    COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (n, h): value head h of the newest token of place n.

    Columns of a state have nothing to do with one another except the norm of the result, so COLUMNS of them at a time are
    in registers, and several programs fit beside each other. S^T k and S^T q of the state before are summed together: the
    result follows from both without another sum over the state.

        u = beta (v - alpha S^T k),  o = alpha S^T q + (k q) u,  S <- alpha S + k u^T
    """
    let_next_start(PDL)
    GROUP: tl.constexpr = VALUE_HEADS // KEY_HEADS
    PARTS: tl.constexpr = PADDED_VALUE // COLUMNS
    head = tl.program_id(1)
    row = tl.load(rows_ptr + tl.program_id(0)).to(tl.int64)
    start = tl.load(lengths_ptr + row) - 1
    slot = tl.load(tables_ptr + row * table_stride).to(tl.int64)
    token_ptr = projected_ptr + tl.program_id(0).to(tl.int64) * WIDTH
    keys, columns = tl.arange(0, PADDED_KEY), tl.arange(0, COLUMNS)
    in_key = keys < KEY_DIM
    state_ptrs = sums_ptr + (slot * VALUE_HEADS + head) * (KEY_DIM * VALUE_DIM)
    state_ptrs = state_ptrs + (keys[:, None] * VALUE_DIM + columns[None, :])
    in_first = in_key[:, None] & (columns < VALUE_DIM)[None, :]
    first = tl.load(state_ptrs, mask=in_first & (start > 0), other=0.0)
    q_channels = (head // GROUP) * KEY_DIM + keys
    k_channels = KEYS + q_channels
    q_taps = _taps(conv_ptr, q_channels, in_key, TAPS, PADDED_TAPS)
    k_taps = _taps(conv_ptr, k_channels, in_key, TAPS, PADDED_TAPS)
    rate = tl.exp(tl.load(decay_log_ptr + head))
    bias = tl.load(decay_bias_ptr + head)
    recent_ptr += slot * (TAPS * CHANNELS)
    wait_for_last(PDL)
    q = _convolved(
        token_ptr, recent_ptr, q_taps, q_channels, in_key, 0, start, WIDTH, CHANNELS, TAPS, PADDED_TAPS
    )  # fmt: skip
    k = _convolved(
        token_ptr, recent_ptr, k_taps, k_channels, in_key, 0, start, WIDTH, CHANNELS, TAPS, PADDED_TAPS
    )  # fmt: skip
    q, k = _unit(q) * scale, _unit(k)
    kq = tl.sum(q * k, 0)
    beta = sigmoid(tl.load(token_ptr + CHANNELS + INNER + head).to(tl.float32))
    a = tl.load(token_ptr + CHANNELS + INNER + VALUE_HEADS + head).to(tl.float32) + bias
    a = softplus(a)
    alpha = tl.exp(-rate * a)
    results = ()
    squares = 0.0
    for part in tl.static_range(PARTS):
        values = part * COLUMNS + columns
        in_value = values < VALUE_DIM
        in_state = in_key[:, None] & in_value[None, :]
        if part == 0:
            state = first
        else:
            state = tl.load(state_ptrs + part * COLUMNS, mask=in_state & (start > 0), other=0.0)
        channels = 2 * KEYS + head * VALUE_DIM + values
        taps = _taps(conv_ptr, channels, in_value, TAPS, PADDED_TAPS)
        v = _convolved(
            token_ptr, recent_ptr, taps, channels, in_value, 0, start, WIDTH, CHANNELS, TAPS, PADDED_TAPS
        )  # fmt: skip
        state_k, state_q = tl.sum(state * k[:, None], 0), tl.sum(state * q[:, None], 0)  # S^T k, S^T q
        u = beta * (v - alpha * state_k)
        o = alpha * state_q + kq * u
        tl.store(state_ptrs + part * COLUMNS, alpha * state + k[:, None] * u[None, :], mask=in_state)
        squares += tl.sum(o * o, 0)
        results = results + (o,)  # type: ignore[assignment]  # noqa: RUF005 - Triton unpacks no tuples
    length = tl.rsqrt(squares / VALUE_DIM + eps)
    for part in tl.static_range(PARTS):
        values = part * COLUMNS + columns
        in_value = values < VALUE_DIM
        norm = tl.load(norm_ptr + values, mask=in_value, other=0.0).to(tl.float32)
        at = head * VALUE_DIM + values
        gate = tl.load(token_ptr + CHANNELS + at, mask=in_value, other=0.0).to(tl.float32)
        o = results[part] * length * norm * gate / (1.0 + tl.exp(-gate))
        out_ptrs = out_ptr + tl.program_id(0).to(tl.int64) * INNER + at
        tl.store(out_ptrs, o.to(out_ptr.dtype.element_ty), mask=in_value)
        _keep(token_ptr, recent_ptr, 2 * KEYS + at, in_value, start, CHANNELS, TAPS)
    if head % GROUP == 0:
        _keep(token_ptr, recent_ptr, q_channels, in_key, start, CHANNELS, TAPS)
        _keep(token_ptr, recent_ptr, k_channels, in_key, start, CHANNELS, TAPS)
