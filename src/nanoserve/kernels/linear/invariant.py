"""A product whose rows do not know of each other: the same bits alone and in a batch."""

from __future__ import annotations

import triton
from torch import Tensor

from nanoserve.kernels.linear.configurations import invariant_tile
from nanoserve.kernels.linear.triton_kernels import invariant_kernel
from nanoserve.kernels.triton_launch import launch_options


def invariant_linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Compute out = x weight^T + bias + residual, each row of which has the same bits however many rows there are.

    A library chooses tiles and splits by the number of rows, and with them the order of summation ("Defeating
    Nondeterminism in LLM Inference", Thinking Machines Lab 2025). Here tile, steps along K and instructions are fixed for
    a dtype. The price is a nearly empty tile when there are few rows.

    Args:
        x: [T, K], contiguous, T >= 1.
        weight: [N, K], contiguous, in the dtype of `x`.
        out: [T, N], contiguous; any float dtype. It may not be `x`.
        bias: [N], added to the product.
        residual: [T, N], contiguous, added to the sum; may be `out` itself.
        pdl: see `nanoserve.kernels.triton_launch`. Nothing is read before the wait.
    """
    num_rows, (n, k) = len(x), weight.shape
    tile = invariant_tile(x.dtype)
    invariant_kernel[(triton.cdiv(num_rows, tile.bt) * triton.cdiv(n, tile.bn),)](
        x,
        weight,
        out,
        bias,
        residual,
        num_rows,
        N=n,
        K=k,
        BT=tile.bt,
        BN=tile.bn,
        BK=tile.bk,
        GROUP=tile.group,
        PDL=pdl,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **launch_options(pdl),
    )
