"""The gate of gated attention on a GPU."""

from __future__ import annotations

import triton
from torch import Tensor

from nanoserve.kernels.sigmoid_mul.triton import sigmoid_mul_kernel
from nanoserve.kernels.triton_launch import launch_options

_BLOCK = 1024
"""Elements per program."""


def sigmoid_mul_into(x: Tensor, gate: Tensor, *, pdl: bool = False) -> None:
    """Multiply `x` by sigmoid(gate), in float32.

    Args:
        x: [M, size], contiguous, any float dtype; changed in place.
        gate: [M, size], rows contiguous; apart from `x`.
        pdl: see `nanoserve.kernels.triton_launch`. Nothing is read before the wait.
    """
    num_rows, size = x.shape
    sigmoid_mul_kernel[(num_rows * triton.cdiv(size, _BLOCK),)](
        x, gate, gate.stride(0), SIZE=size, BLOCK=_BLOCK, PDL=pdl, num_warps=4, **launch_options(pdl)
    )
