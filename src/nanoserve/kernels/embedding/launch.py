"""The launch of the embedding lookup, by row and position or of rows' newest tokens."""

from __future__ import annotations

import triton
from torch import Tensor

from nanoserve.kernels.device.launch import launch_options
from nanoserve.kernels.embedding.triton import embed_kernel


def embed_tokens(
    tokens: Tensor,
    token_rows: Tensor,
    positions: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    scale: float | None = None,
    newest: bool = False,
    pdl: bool = False,
) -> None:
    """Write the vectors of tokens by row and position: out[t] = weight[tokens[token_rows[t], positions[t]]].

    Args:
        tokens: int32 [R, W], each row's tokens from position 0 on.
        token_rows: int32 [T], whose token each one is.
        positions: int32 [T], which of the row's tokens it is.
        weight: [V, K], contiguous.
        out: [T, K], contiguous, in the dtype of `weight`.
        scale: multiplies every vector, in float32; None for one.
        newest: whether `positions` are instead int32 [R], each row's length, of which the token is the newest.
        pdl: see `nanoserve.kernels.device.pdl`. Nothing is read before the wait.
    """
    size = weight.shape[1]
    block = triton.next_power_of_2(size)
    embed_kernel[(len(token_rows),)](
        tokens, token_rows, positions, weight, out, tokens.stride(0), scale,
        NEWEST=newest, K=size, BLOCK=block, PDL=pdl, num_warps=min(8, max(1, block // 256)),
        **launch_options(pdl),
    )  # fmt: skip
