"""Cache entry, or the rotated part of some query heads, of one token per program."""

from __future__ import annotations

import triton
import triton.language as tl

from nanoserve.kernels.device.pdl import let_next_start, wait_for_last


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
    projected_ptr, heads_ptr, rotated_ptr, entries_ptr, token_rows_ptr, positions_ptr, tables_ptr, rotations_ptr, norm_ptr,
    eps, table_stride, block_stride, projected_token, heads_token, rotated_token, rotated_head,
    NUM_HEADS: tl.constexpr, LATENT: tl.constexpr, ROPE: tl.constexpr, NOPE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    PADDED_LATENT: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr, NEWEST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (t, 0): token t's entry; program (t, 1 + g): its query heads [g * HEADS, (g + 1) * HEADS).

    With NEWEST, `positions_ptr` holds the length of each row instead of the position of each token.
    """
    let_next_start(PDL)
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    row = tl.load(token_rows_ptr + token).to(tl.int64)
    position = tl.load(positions_ptr + row) - 1 if NEWEST else tl.load(positions_ptr + token)
    rotation_ptr = rotations_ptr + position.to(tl.int64) * ROPE
    block = tl.load(tables_ptr + row * table_stride + position // BLOCK_SIZE).to(tl.int64)
    wait_for_last(PDL)
    if group == 0:
        one = tl.arange(0, 1)
        elements = tl.arange(0, PADDED_LATENT)
        inside = elements < LATENT
        source_ptr = projected_ptr + token * projected_token
        entry_ptr = entries_ptr + block * block_stride + position % BLOCK_SIZE * (LATENT + ROPE)
        latent = tl.load(source_ptr + elements, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(norm_ptr + elements, mask=inside, other=0.0).to(tl.float32)
        normed = latent * tl.rsqrt(tl.sum(latent * latent, 0) / LATENT + eps) * weight
        tl.store(entry_ptr + elements, normed.to(entries_ptr.dtype.element_ty), mask=inside)
        rotate_rows(source_ptr + LATENT + one, entry_ptr + LATENT + one, one < 1, rotation_ptr, ROPE, HALF)
    else:
        heads = (group - 1) * HEADS + tl.arange(0, HEADS)
        source_ptrs = heads_ptr + token * heads_token + heads * (NOPE + ROPE) + NOPE
        target_ptrs = rotated_ptr + token * rotated_token + heads * rotated_head
        rotate_rows(source_ptrs, target_ptrs, heads < NUM_HEADS, rotation_ptr, ROPE, HALF)
