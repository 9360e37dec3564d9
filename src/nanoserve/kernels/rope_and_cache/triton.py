"""Norm, rotation and cache write: of one token's query heads or KV heads per program, or of its latent."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.kept import narrowed
from nanoserve.kernels.device.pdl import let_next_start, wait_for_last


@triton.jit
def load_halves(heads_ptr, heads, NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr):
    """Both halves of the elements of some heads, each [heads, HALF], with their offsets and mask."""
    pairs = tl.arange(0, HALF)
    mask = (heads < NUM_HEADS)[:, None] & (pairs < HEAD_DIM // 2)[None, :]
    offsets = heads[:, None] * HEAD_DIM + pairs[None, :]
    first = tl.load(heads_ptr + offsets, mask=mask, other=0.0)
    second = tl.load(heads_ptr + offsets + HEAD_DIM // 2, mask=mask, other=0.0)
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
def load_weight(weight_ptr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr):
    """Both halves of a norm's weight, [HALF] each."""
    pairs = tl.arange(0, HALF)
    inside = pairs < HEAD_DIM // 2
    first = tl.load(weight_ptr + pairs, mask=inside, other=0.0)
    second = tl.load(weight_ptr + HEAD_DIM // 2 + pairs, mask=inside, other=0.0)
    return first, second


@triton.jit
def turn_queries(
    source_ptr, target_ptr, heads, weight_ptr, eps, cos, sin,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Norm and rotate some query heads of one token."""
    if NORM:
        first_weight, second_weight = load_weight(weight_ptr, HEAD_DIM, HALF)
    first, second, offsets, mask = load_halves(source_ptr, heads, NUM_HEADS, HEAD_DIM, HALF)
    if NORM:
        first, second = norm_heads(first, second, first_weight, second_weight, eps, HEAD_DIM)
    first, second = rotate(first, second, cos, sin)
    tl.store(target_ptr + offsets, first, mask=mask)
    tl.store(target_ptr + offsets + HEAD_DIM // 2, second, mask=mask)


@triton.jit
def fill_slot(
    key_source_ptr, value_source_ptr, key_ptr, value_ptr, heads, weight_ptr, scales_ptr, eps, cos, sin,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Norm and rotate some key heads of one token, and write them and the value heads to its slot."""
    if NORM:
        first_weight, second_weight = load_weight(weight_ptr, HEAD_DIM, HALF)
    first, second, _, mask = load_halves(key_source_ptr, heads, NUM_HEADS, HEAD_DIM, HALF)
    low, high, _, mask = load_halves(value_source_ptr, heads, NUM_HEADS, HEAD_DIM, HALF)
    if NORM:
        first, second = norm_heads(first, second, first_weight, second_weight, eps, HEAD_DIM)
    first, second = rotate(first, second, cos, sin)
    places = heads[:, None] * (BLOCK_SIZE * HEAD_DIM) + tl.arange(0, HALF)[None, :]
    kept: tl.constexpr = key_ptr.dtype.element_ty
    key_scale, value_scale = None, None
    if scales_ptr is not None:
        key_scale = tl.load(scales_ptr + heads, mask=heads < NUM_HEADS, other=1.0)[:, None]
        value_scale = tl.load(scales_ptr + NUM_HEADS + heads, mask=heads < NUM_HEADS, other=1.0)[:, None]
    tl.store(key_ptr + places, narrowed(first, key_scale, kept), mask=mask)
    tl.store(key_ptr + places + HEAD_DIM // 2, narrowed(second, key_scale, kept), mask=mask)
    tl.store(value_ptr + places, narrowed(low, value_scale, kept), mask=mask)
    tl.store(value_ptr + places + HEAD_DIM // 2, narrowed(high, value_scale, kept), mask=mask)


@triton.jit(do_not_specialize=["token_rows_ptr", "positions_ptr", "table_stride"])
def rope_and_cache_kernel(
    qkv_ptr, query_ptr, keys_ptr, values_ptr, token_rows_ptr, positions_ptr, limits_ptr, block_tables_ptr, rotations_ptr,
    q_norm_ptr, k_norm_ptr, scales_ptr, eps, token_stride, table_stride, block_stride,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HALF: tl.constexpr, Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, NORM: tl.constexpr, NEWEST: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Program (t, g): group g of token t's query heads, or after those of its KV heads; halves of heads [heads, HALF] are rotated.

    With NEWEST, `positions_ptr` holds the length of each row instead of the position of each token; a row has WIDTH tokens from its
    newest on, and those at its limit - 1 and behind are not written.
    """
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    row = tl.load(token_rows_ptr + token // WIDTH).to(tl.int64)
    ahead = (token % WIDTH).to(tl.int32)
    position = tl.load(positions_ptr + row) - 1 + ahead if NEWEST else tl.load(positions_ptr + token)
    pairs = tl.arange(0, HALF)
    inside = pairs < HEAD_DIM // 2
    rotation_ptr = rotations_ptr + position.to(tl.int64) * HEAD_DIM
    cos = tl.load(rotation_ptr + pairs, mask=inside, other=0.0)
    sin = tl.load(rotation_ptr + HEAD_DIM // 2 + pairs, mask=inside, other=0.0)
    source_ptr = qkv_ptr + token * token_stride
    Q_GROUPS: tl.constexpr = (NUM_HEADS + Q_HEADS - 1) // Q_HEADS
    if group < Q_GROUPS:
        turn_queries(
            source_ptr, query_ptr + token * (NUM_HEADS * HEAD_DIM), group * Q_HEADS + tl.arange(0, Q_HEADS), q_norm_ptr,
            eps, cos, sin, NUM_HEADS, HEAD_DIM, HALF, NORM,
        )  # fmt: skip
    else:
        block = tl.load(block_tables_ptr + row * table_stride + position // BLOCK_SIZE).to(tl.int64)
        slot = block * block_stride + position % BLOCK_SIZE * HEAD_DIM
        key_source_ptr = source_ptr + NUM_HEADS * HEAD_DIM
        if limits_ptr is not None:
            group = tl.where(position < tl.load(limits_ptr + row) - 1, group, Q_GROUPS + NUM_KV_HEADS)
        fill_slot(
            key_source_ptr, key_source_ptr + NUM_KV_HEADS * HEAD_DIM, keys_ptr + slot, values_ptr + slot,
            (group - Q_GROUPS) * KV_HEADS + tl.arange(0, KV_HEADS), k_norm_ptr, scales_ptr, eps, cos, sin,
            NUM_KV_HEADS, HEAD_DIM, HALF, BLOCK_SIZE, NORM,
        )  # fmt: skip


@triton.jit
def rotate_rows(source_ptrs, target_ptrs, exists, rotation_ptr, ROPE: tl.constexpr, HALF: tl.constexpr):
    """Turn each pair of the ROPE elements from `source_ptrs` on; in float32, rounded to the dtype of the target."""
    pairs = tl.arange(0, HALF)
    inside = pairs < ROPE // 2
    cos = tl.load(rotation_ptr + pairs, mask=inside, other=0.0)[None, :]
    sin = tl.load(rotation_ptr + ROPE // 2 + pairs, mask=inside, other=0.0)[None, :]
    mask = exists[:, None] & inside[None, :]
    first_ptrs = source_ptrs[:, None] + pairs[None, :]
    low = tl.load(first_ptrs, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(first_ptrs + ROPE // 2, mask=mask, other=0.0).to(tl.float32)
    low_ptrs = target_ptrs[:, None] + pairs[None, :]
    dtype = target_ptrs.dtype.element_ty
    tl.store(low_ptrs, (low * cos - high * sin).to(dtype), mask=mask)
    tl.store(low_ptrs + ROPE // 2, (high * cos + low * sin).to(dtype), mask=mask)


@triton.jit(do_not_specialize=["token_rows_ptr", "positions_ptr", "table_stride"])
def latent_cache_kernel(
    projected_ptr, heads_ptr, rotated_ptr, entries_ptr, token_rows_ptr, positions_ptr, limits_ptr, tables_ptr, rotations_ptr,
    norm_ptr, eps, table_stride, block_stride, projected_token, heads_token, rotated_token, rotated_head,
    NUM_HEADS: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, NOPE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    PADDED_LATENT: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr, NEWEST: tl.constexpr, WIDTH: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Program (t, 0): token t's entry; program (t, 1 + g): its query heads [g * HEADS, (g + 1) * HEADS).

    With NEWEST, `positions_ptr` holds the length of each row, see `rope_and_cache_kernel`.
    """
    let_next_start(PDL)
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    row = tl.load(token_rows_ptr + token // WIDTH).to(tl.int64)
    ahead = (token % WIDTH).to(tl.int32)
    position = tl.load(positions_ptr + row) - 1 + ahead if NEWEST else tl.load(positions_ptr + token)
    kept = 1 if limits_ptr is None else (position < tl.load(limits_ptr + row) - 1).to(tl.int32)
    rotation_ptr = rotations_ptr + position.to(tl.int64) * ROPE
    block = tl.load(tables_ptr + row * table_stride + position // BLOCK_SIZE).to(tl.int64)
    wait_for_last(PDL)
    if group == 0:
        one = tl.arange(0, 1)
        elements = tl.arange(0, PADDED_LATENT)
        inside = elements < LATENT * kept
        source_ptr = projected_ptr + token * projected_token
        entry_ptr = entries_ptr + block * block_stride + position % BLOCK_SIZE * (LATENT + ROPE)
        latent = tl.load(source_ptr + elements, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(norm_ptr + elements, mask=inside, other=0.0).to(tl.float32)
        normed = latent * tl.rsqrt(tl.sum(latent * latent, 0) / LATENT + eps) * weight
        tl.store(entry_ptr + elements, normed.to(entries_ptr.dtype.element_ty), mask=inside)
        rotate_rows(source_ptr + LATENT + one, entry_ptr + LATENT + one, one < kept, rotation_ptr, ROPE, HALF)
    else:
        heads = (group - 1) * HEADS + tl.arange(0, HEADS)
        source_ptrs = heads_ptr + token * heads_token + heads * (NOPE + ROPE) + NOPE
        target_ptrs = rotated_ptr + token * rotated_token + heads * rotated_head
        rotate_rows(source_ptrs, target_ptrs, heads < NUM_HEADS, rotation_ptr, ROPE, HALF)
