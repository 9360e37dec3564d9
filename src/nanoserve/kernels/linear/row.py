"""The product of one row with a weight, with what comes before and after it in a decoder layer fused in."""

from __future__ import annotations

import triton
from torch import Tensor

from nanoserve.kernels.linear.configurations import row_tile
from nanoserve.kernels.linear.triton_kernels import row_kernel
from nanoserve.kernels.triton_launch import launch_options


def row_linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    gate: bool = False,
    pdl: bool = False,
) -> None:
    """Compute out = residual + gate(norm(x) weight^T + bias), each part being optional, for one row on the CUDA cores.

    At one row a product is nothing but reading the weight: each program loads its rows of it with wide loads, all
    in flight at once and, with PDL, before the kernel ahead has ended. Sums are float32.

    Args:
        x: [1, K].
        weight: [N, K], contiguous, in the dtype of `x`.
        out: [1, N], or [1, N / 2] with `gate`; any float dtype. It may be `residual`, but not `x`.
        bias: [N], added to the product.
        norm_weight: [K]; x is first scaled to a root mean square of one and multiplied by this (RMSNorm).
        eps: of the norm, added to the mean square.
        residual: in the shape of `out`, added last.
        gate: the first N / 2 rows of the weight are a gate projection and the others an up projection: what
            counts as the product is silu(gate) * up. N is even.
        pdl: see `nanoserve.kernels.triton_launch`. Weight, bias and norm_weight are read before the wait.
    """
    n, k = weight.shape
    tile = row_tile(n, k, weight.element_size(), gate=gate)
    row_kernel[(triton.cdiv(n, tile.rows),)](
        x,
        weight,
        out,
        bias,
        norm_weight,
        residual,
        eps,
        N=n,
        K=k,
        ROWS=tile.rows,
        CHUNK=tile.chunk,
        GATE=gate,
        PDL=pdl,
        num_warps=tile.warps,
        **launch_options(pdl),
    )
