"""The launch of head norm, rotation and cache write, of any tokens or of rows' newest ones."""

from __future__ import annotations

import triton
from torch import Tensor

from nanoserve.kernels.paged import HeadTransform, PagedCache
from nanoserve.kernels.rope_and_cache.triton import rope_and_cache_kernel

ELEMENTS = 2048
"""Elements of query heads, or of key heads, that one program turns at most: two 16-byte accesses per thread."""
WARPS = 4


def rope_and_cache(
    qkv: Tensor,
    query: Tensor,
    cache: PagedCache,
    transform: HeadTransform,
    *,
    token_rows: Tensor,
    positions: Tensor,
    newest: bool = False,
) -> None:
    """Turn the projections of T tokens into queries and cache entries.

    Arithmetic is float32; a normed head is rounded to the dtype before it is rotated. The T tokens' slots must
    differ, except for padding that shares one.

    Args:
        qkv: [T, (num_heads + 2 * num_kv_heads) * head_dim], rows contiguous, bias added: all query heads, then key heads, then value
            heads. bfloat16, float16 or float32, as are all tensors without a dtype here.
        query: [T, num_heads * head_dim], written.
        cache: written at the T tokens' slots.
        transform: of the query and key heads.
        token_rows: int32 [T], the row of each token.
        positions: int32 [T], the position of each token in its row.
        newest: whether `positions` are instead int32 [rows], tokens of each row, of which token t is the newest.
    """
    # One program per token and group of query heads or of KV heads.
    num_kv_heads, block_size, head_dim = cache.keys.shape[1:]
    num_heads = query.shape[1] // head_dim
    half = triton.next_power_of_2(head_dim // 2)
    most = max(1, ELEMENTS // (2 * half))
    q_heads = min(triton.next_power_of_2(num_heads), most)
    kv_heads = min(triton.next_power_of_2(num_kv_heads), most)
    groups = triton.cdiv(num_heads, q_heads) + triton.cdiv(num_kv_heads, kv_heads)
    # Without norms their pointers are never followed: any tensor of the dtype stands in, so one signature serves both.
    rope_and_cache_kernel[(qkv.shape[0], groups)](
        qkv, query, cache.keys, cache.values, token_rows, positions, cache.tables, transform.rotations,
        qkv if transform.q_norm is None else transform.q_norm, qkv if transform.k_norm is None else transform.k_norm,
        transform.eps, qkv.stride(0), cache.tables.stride(0), cache.block_stride,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, HALF=half,
        Q_HEADS=q_heads, KV_HEADS=kv_heads, NORM=transform.q_norm is not None, NEWEST=newest, num_warps=WARPS,
    )  # fmt: skip
