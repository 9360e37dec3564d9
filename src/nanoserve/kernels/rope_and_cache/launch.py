"""Launches of head norm, rotation and cache write: of any tokens, and of rows' newest ones."""

from __future__ import annotations

import triton
from torch import Tensor

from nanoserve.kernels.rope_and_cache.triton import rope_and_cache_kernel
from nanoserve.kernels.triton_launch import launch_options

ELEMENTS = 2048
"""Elements of query heads, or of key heads, that one program turns at most: two 16-byte accesses per thread."""
WARPS = 4


def rope_and_cache(
    qkv: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    token_rows: Tensor,
    positions: Tensor,
    block_tables: Tensor,
    rotations: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    newest: bool = False,
    pdl: bool = False,
) -> None:
    """Turn the projections of T tokens into queries and cache entries.

    Arithmetic is float32; a normed head is rounded to the dtype before it is rotated. The T tokens' slots must
    differ, except for padding that shares one.

    Args:
        qkv: [T, (num_heads + 2 * num_kv_heads) * head_dim], bias added: all query heads, then key heads, then value
            heads. bfloat16, float16 or float32, as are all tensors without a dtype here.
        query: [T, num_heads * head_dim], written.
        keys: [blocks, num_kv_heads, block_size, head_dim], one layer's pool; token t is written to block
            block_tables[token_rows[t], positions[t] // block_size], place positions[t] % block_size.
        values: like `keys`.
        token_rows: int32 [T], the row of each token.
        positions: int32 [T], the position of each token in its row.
        block_tables: int32 [rows, max_blocks], last dimension contiguous.
        rotations: float32 [max_position, head_dim]: of each position the cosines of the head_dim / 2 pairs, then their
            sines. Element i of a head pairs with element i + head_dim / 2.
        q_norm: [head_dim], weight of the query heads' norm, or None for no norm of either queries or keys.
        k_norm: [head_dim], weight of the key heads' norm, or None like `q_norm`.
        eps: of the norms.
        newest: whether `positions` are instead int32 [rows], tokens of each row, of which token t is the newest.
        pdl: whether to start before the kernel before has ended. Then `token_rows`, `positions`, `block_tables`
            and the constants must have been written before the chain of such kernels began.
    """
    # One program per token and group of query heads or of KV heads.
    num_kv_heads, block_size, head_dim = keys.shape[1:]
    num_heads = query.shape[1] // head_dim
    half = triton.next_power_of_2(head_dim // 2)
    most = max(1, ELEMENTS // (2 * half))
    q_heads = min(triton.next_power_of_2(num_heads), most)
    kv_heads = min(triton.next_power_of_2(num_kv_heads), most)
    groups = triton.cdiv(num_heads, q_heads) + triton.cdiv(num_kv_heads, kv_heads)
    # Without norms their pointers are never followed: any tensor of the dtype stands in, so one signature serves both.
    rope_and_cache_kernel[(qkv.shape[0], groups)](
        qkv, query, keys, values, token_rows, positions, block_tables, rotations,
        q_norm if q_norm is not None else qkv, k_norm if k_norm is not None else qkv, eps,
        block_tables.stride(0),
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, HALF=half,
        Q_HEADS=q_heads, KV_HEADS=kv_heads, NORM=q_norm is not None, NEWEST=newest, PDL=pdl, num_warps=WARPS,
        **launch_options(pdl),
    )  # fmt: skip


def rope_and_cache_newest(
    qkv: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    batch_rows: Tensor,
    lengths: Tensor,
    block_tables: Tensor,
    rotations: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    pdl: bool = False,
) -> None:
    """As `rope_and_cache` for decoding rows: token t is the newest of its row, at position length - 1.

    `batch_rows` is int32 [T], the row of each token, and `lengths` int32 [rows], tokens of each row, the newest
    included; under `pdl` both are read early. All else is as in `rope_and_cache`.
    """
    rope_and_cache(
        qkv, query, keys, values, token_rows=batch_rows, positions=lengths, block_tables=block_tables,
        rotations=rotations, q_norm=q_norm, k_norm=k_norm, eps=eps, newest=True, pdl=pdl,
    )  # fmt: skip
