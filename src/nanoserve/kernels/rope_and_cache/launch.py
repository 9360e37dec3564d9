"""Launches of norm, rotation and cache write, of any tokens or of rows' newest ones: of heads, and of latents."""

from __future__ import annotations

from torch import Tensor

from nanoserve.kernels.device.launch import launch_options, next_power_of_2
from nanoserve.kernels.heads import HeadTransform
from nanoserve.kernels.latent import LatentCache
from nanoserve.kernels.paged import PagedCache
from nanoserve.kernels.rope_and_cache.triton import latent_cache_kernel, rope_and_cache_kernel

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
    limits: Tensor | None = None,
    width: int = 1,
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
        limits: int32 [rows], with `newest`: how many tokens each row may come to have. From the place of the last one on, no slot is
            written.
        width: with `newest`, tokens of each row, its newest and those behind it; token_rows is [T / width].
    """
    # One program per token and group of query heads or of KV heads.
    num_kv_heads, block_size, head_dim = cache.keys.shape[1:]
    num_heads = query.shape[1] // head_dim
    half = next_power_of_2(head_dim // 2)
    most = max(1, ELEMENTS // (2 * half))
    q_heads = min(next_power_of_2(num_heads), most)
    kv_heads = min(next_power_of_2(num_kv_heads), most)
    groups = -(-num_heads // q_heads) - (-num_kv_heads // kv_heads)
    # Without norms their pointers are never followed: any tensor of the dtype stands in, so one signature serves both.
    rope_and_cache_kernel[(qkv.shape[0], groups)](
        qkv_ptr=qkv, query_ptr=query, keys_ptr=cache.keys, values_ptr=cache.values, token_rows_ptr=token_rows,
        positions_ptr=positions, limits_ptr=limits, block_tables_ptr=cache.tables, rotations_ptr=transform.rotations,
        q_norm_ptr=qkv if transform.q_norm is None else transform.q_norm,
        k_norm_ptr=qkv if transform.k_norm is None else transform.k_norm,
        scales_ptr=cache.scales, eps=transform.eps, token_stride=qkv.stride(0), table_stride=cache.tables.stride(0),
        block_stride=cache.block_stride,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim, BLOCK_SIZE=block_size, HALF=half,
        Q_HEADS=q_heads, KV_HEADS=kv_heads,
        NORM=transform.q_norm is not None, NEWEST=newest, WIDTH=width, num_warps=WARPS,
    )  # fmt: skip


LATENT_HEADS = 16
"""Query heads that one program turns."""


def write_latents(
    projected: Tensor,
    heads: Tensor,
    rotated: Tensor,
    cache: LatentCache,
    *,
    norm_weight: Tensor,
    eps: float,
    rotations: Tensor,
    token_rows: Tensor,
    positions: Tensor,
    newest: bool = False,
    limits: Tensor | None = None,
    width: int = 1,
    pdl: bool = False,
) -> None:
    """Turn the projections of T tokens into cache entries, and rotate what of their queries has a position.

    Arithmetic is float32. The T tokens' slots must differ, except for padding that shares one.

    Args:
        projected: [T, latent_dim + rope_dim], last dimension contiguous: the latent before its norm and the key before its
            rotation. bfloat16, float16 or float32, as are all tensors without a dtype here.
        heads: [T, num_heads, nope_dim + rope_dim], contiguous except the stride of the tokens.
        rotated: [T, num_heads, rope_dim], last dimension contiguous, overwritten: where the last rope_dim elements of each
            head go. They may be those of `heads` themselves.
        cache: written at the T tokens' slots.
        norm_weight: [latent_dim], of the latent's norm.
        eps: added to the mean square of that norm.
        rotations: float32 [max_position, rope_dim]: cosines of a position's angles, then their sines. Element i is paired
            with element i + rope_dim / 2.
        token_rows: int32 [T], the row of each token.
        positions: int32 [T], the position of each token in its row.
        newest: whether `positions` are instead int32 [rows], tokens of each row, of which token t is the newest.
        limits: as in `rope_and_cache`.
        width: as in `rope_and_cache`.
        pdl: see `nanoserve.kernels.device.pdl`. Rows, positions and block tables are read before the wait.
    """
    num_tokens, num_heads, head_dim = heads.shape
    if not num_tokens:
        return
    latent_dim, rope_dim = cache.latent_dim, cache.rope_dim
    grid = num_tokens, 1 - (-num_heads // LATENT_HEADS)
    latent_cache_kernel[grid](
        projected_ptr=projected, heads_ptr=heads, rotated_ptr=rotated, entries_ptr=cache.entries,
        token_rows_ptr=token_rows, positions_ptr=positions, limits_ptr=limits, tables_ptr=cache.tables, rotations_ptr=rotations,
        norm_ptr=norm_weight,
        eps=eps, table_stride=cache.tables.stride(0), block_stride=cache.block_stride,
        projected_token=projected.stride(0), heads_token=heads.stride(0), rotated_token=rotated.stride(0),
        rotated_head=rotated.stride(1),
        NUM_HEADS=num_heads, LATENT=latent_dim, ROPE=rope_dim, NOPE=head_dim - rope_dim,
        BLOCK_SIZE=cache.entries.shape[1], PADDED_LATENT=next_power_of_2(latent_dim),
        HALF=next_power_of_2(rope_dim // 2), HEADS=LATENT_HEADS,
        NEWEST=newest, WIDTH=width, PDL=pdl, num_warps=WARPS, **launch_options(pdl),
    )  # fmt: skip
