"""The launch of gate and up projections that write their gated product alone, and when they are worth it."""

from __future__ import annotations

from typing import Final

import triton
from torch import Tensor
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from nanoserve.kernels.device.launch import has_wgmma, multiprocessors
from nanoserve.kernels.forms import StoredWeight
from nanoserve.kernels.gates import Activation
from nanoserve.kernels.linear.gated.triton_gated import gated_kernel

LEAST_ROWS: Final = 2048
"""Rows from which they are: with fewer the vendor's product gains more than reading and writing the projections costs."""
ROWS: Final = 128
WIDTH: Final = 128
"""Columns of each projection in a tile."""
STEP: Final = 64
BAND: Final = 8
"""Tiles of rows that walk over the weight together, so that what they read of it stays in the L2 cache."""


def fits_gated(x: Tensor, weight: Tensor | StoredWeight) -> bool:
    """True if `gated_linear` can multiply rows like x [T, K] with a weight [2 N, K], once it is plain."""
    sizes = x.shape[1] % 8 == 0 and len(weight) % (2 * WIDTH) == 0
    return sizes and x.element_size() == 2 and has_wgmma(x.device)


def gated_linear(x: Tensor, weight: Tensor, out: Tensor, *, gate: Activation) -> None:
    """Compute out = gate(x g^T) (x u^T), with g the first half of the weight's rows and u the second; sums are in float32.

    Args:
        x: [T, K], contiguous, of half precision, K a multiple of 8.
        weight: [2 N, K], contiguous, in the dtype of `x`; N is a multiple of 128.
        out: [T, N], contiguous, in the dtype of `x`. It may not be `x`.
        gate: the activation.
    """
    (rows, k), n = x.shape, len(weight) // 2
    layout = NVMMASharedLayout(128, 16, rank=2)
    tiles = triton.cdiv(rows, ROWS) * (n // WIDTH)
    gated_kernel[(min(tiles, multiprocessors(x.device)),)](
        x=TensorDescriptor.from_tensor(x, [ROWS, STEP], layout), weight=TensorDescriptor.from_tensor(weight, [WIDTH, STEP], layout),
        out_ptr=out, T=rows, N=n, K=k, GATE=gate, ROWS=ROWS, WIDTH=WIDTH, STEP=STEP, STAGES=4, BAND=BAND, num_warps=4,
    )  # fmt: skip
