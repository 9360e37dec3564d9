"""Launches of the embedding lookup, by row and position and of rows' newest tokens."""

from __future__ import annotations

import triton
from torch import Tensor

from nanoserve.kernels.embedding.triton import embed_kernel
from nanoserve.kernels.triton_launch import launch_options


def embed_newest(
    tokens: Tensor,
    lengths: Tensor,
    batch_rows: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    pdl: bool = False,
) -> None:
    """Write the vector of each place's newest token: out[b] = weight[tokens[r, lengths[r] - 1]], r = batch_rows[b].

    Args:
        tokens: int32 [R, W], each row's tokens from position 0 on.
        lengths: int32 [R], how many tokens a row has, at least 1 for the rows asked for.
        batch_rows: int32 [B], which row each place of the batch is.
        weight: [V, K], contiguous.
        out: [B, K], contiguous, in the dtype of `weight`.
        pdl: see `nanoserve.kernels.triton_launch`. Nothing is read before the wait.
    """
    _embed(tokens, batch_rows, lengths, weight, out, newest=True, pdl=pdl)


def embed_tokens(
    tokens: Tensor,
    token_rows: Tensor,
    positions: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    pdl: bool = False,
) -> None:
    """Write the vectors of tokens by row and position: out[t] = weight[tokens[token_rows[t], positions[t]]].

    Args:
        tokens: int32 [R, W], each row's tokens from position 0 on.
        token_rows: int32 [T], whose token each one is.
        positions: int32 [T], which of the row's tokens it is.
        weight: [V, K], contiguous.
        out: [T, K], contiguous, in the dtype of `weight`.
        pdl: see `nanoserve.kernels.triton_launch`. Nothing is read before the wait.
    """
    _embed(tokens, token_rows, positions, weight, out, newest=False, pdl=pdl)


def _embed(
    tokens: Tensor,
    rows: Tensor,
    positions: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    newest: bool,
    pdl: bool,
) -> None:
    size = weight.shape[1]
    block = triton.next_power_of_2(size)
    embed_kernel[(len(rows),)](
        tokens, rows, positions, weight, out, tokens.stride(0),
        NEWEST=newest, K=size, BLOCK=block, PDL=pdl, num_warps=min(8, max(1, block // 256)),
        **launch_options(pdl),
    )  # fmt: skip
