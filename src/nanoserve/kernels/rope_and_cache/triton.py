"""Head norm, rotation and cache write of one token's query heads or KV heads per program."""

import triton
import triton.language as tl


@triton.jit
def load_halves(base, heads, NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr):
    """Both halves of the elements of some heads, each [heads, HALF], with their offsets and mask."""
    pairs = tl.arange(0, HALF)
    mask = (heads < NUM_HEADS)[:, None] & (pairs < HEAD_DIM // 2)[None, :]
    offsets = heads[:, None] * HEAD_DIM + pairs[None, :]
    first = tl.load(base + offsets, mask=mask, other=0.0)
    second = tl.load(base + offsets + HEAD_DIM // 2, mask=mask, other=0.0)
    return first, second, offsets, mask


@triton.jit
def norm_heads(first, second, first_weight, second_weight, eps, HEAD_DIM: tl.constexpr):
    """RMS norm of each head, rounded to the dtype it came in."""
    low, high = first.to(tl.float32), second.to(tl.float32)
    mean_square = (tl.sum(low * low, 1) + tl.sum(high * high, 1)) / HEAD_DIM
    inverse = tl.rsqrt(mean_square + eps)[:, None]
    low = low * inverse * first_weight[None, :].to(tl.float32)
    high = high * inverse * second_weight[None, :].to(tl.float32)
    return low.to(first.dtype), high.to(second.dtype)


@triton.jit
def rotate(first, second, cos, sin):
    """Turn each pair of elements; in the dtype they came in."""
    low, high = first.to(tl.float32), second.to(tl.float32)
    turned_low = low * cos[None, :] - high * sin[None, :]
    turned_high = high * cos[None, :] + low * sin[None, :]
    return turned_low.to(first.dtype), turned_high.to(second.dtype)


@triton.jit
def load_weight(weight, HEAD_DIM: tl.constexpr, HALF: tl.constexpr):
    """Both halves of a norm's weight, [HALF] each."""
    pairs = tl.arange(0, HALF)
    inside = pairs < HEAD_DIM // 2
    first = tl.load(weight + pairs, mask=inside, other=0.0)
    second = tl.load(weight + HEAD_DIM // 2 + pairs, mask=inside, other=0.0)
    return first, second


@triton.jit
def turn_queries(
    source, target, heads, weight, eps, cos, sin,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Norm and rotate some query heads of one token."""
    if NORM:
        first_weight, second_weight = load_weight(weight, HEAD_DIM, HALF)
    if PDL:
        tl.extra.cuda.gdc_wait()
    first, second, offsets, mask = load_halves(source, heads, NUM_HEADS, HEAD_DIM, HALF)
    if NORM:
        first, second = norm_heads(first, second, first_weight, second_weight, eps, HEAD_DIM)
    first, second = rotate(first, second, cos, sin)
    tl.store(target + offsets, first, mask=mask)
    tl.store(target + offsets + HEAD_DIM // 2, second, mask=mask)


@triton.jit
def fill_slot(
    key_source, value_source, keys, values, heads, weight, eps, cos, sin,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Norm and rotate some key heads of one token, and write them and the value heads to its slot."""
    if NORM:
        first_weight, second_weight = load_weight(weight, HEAD_DIM, HALF)
    if PDL:
        tl.extra.cuda.gdc_wait()
    first, second, _, mask = load_halves(key_source, heads, NUM_HEADS, HEAD_DIM, HALF)
    low, high, _, mask = load_halves(value_source, heads, NUM_HEADS, HEAD_DIM, HALF)
    if NORM:
        first, second = norm_heads(first, second, first_weight, second_weight, eps, HEAD_DIM)
    first, second = rotate(first, second, cos, sin)
    places = heads[:, None] * (BLOCK_SIZE * HEAD_DIM) + tl.arange(0, HALF)[None, :]
    tl.store(keys + places, first, mask=mask)
    tl.store(keys + places + HEAD_DIM // 2, second, mask=mask)
    tl.store(values + places, low, mask=mask)
    tl.store(values + places + HEAD_DIM // 2, high, mask=mask)


@triton.jit(do_not_specialize=["token_rows", "positions"])
def rope_and_cache_kernel(
    qkv,
    query,
    keys,
    values,
    token_rows,
    positions,
    block_tables,
    rotations,
    q_norm,
    k_norm,
    eps,
    table_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    NORM: tl.constexpr,
    NEWEST: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (t, g): group g of token t's query heads, or after those of its KV heads.

    With NEWEST, `positions` holds the length of each row instead of the position of each token.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    row = tl.load(token_rows + token).to(tl.int64)
    position = tl.load(positions + row) - 1 if NEWEST else tl.load(positions + token)
    pairs = tl.arange(0, HALF)
    inside = pairs < HEAD_DIM // 2
    rotation = rotations + position.to(tl.int64) * HEAD_DIM
    cos = tl.load(rotation + pairs, mask=inside, other=0.0)
    sin = tl.load(rotation + HEAD_DIM // 2 + pairs, mask=inside, other=0.0)
    source = qkv + token * ((NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM)
    Q_GROUPS: tl.constexpr = (NUM_HEADS + Q_HEADS - 1) // Q_HEADS
    if group < Q_GROUPS:
        turn_queries(
            source, query + token * (NUM_HEADS * HEAD_DIM), group * Q_HEADS + tl.arange(0, Q_HEADS), q_norm, eps,
            cos, sin, NUM_HEADS, HEAD_DIM, HALF, NORM, PDL,
        )  # fmt: skip
    else:
        block = tl.load(block_tables + row * table_stride + position // BLOCK_SIZE).to(tl.int64)
        slot = (block * (NUM_KV_HEADS * BLOCK_SIZE) + position % BLOCK_SIZE) * HEAD_DIM
        key_source = source + NUM_HEADS * HEAD_DIM
        fill_slot(
            key_source, key_source + NUM_KV_HEADS * HEAD_DIM, keys + slot, values + slot,
            (group - Q_GROUPS) * KV_HEADS + tl.arange(0, KV_HEADS), k_norm, eps, cos, sin,
            NUM_KV_HEADS, HEAD_DIM, HALF, BLOCK_SIZE, NORM, PDL,
        )  # fmt: skip
