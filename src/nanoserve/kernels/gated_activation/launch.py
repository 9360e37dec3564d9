"""Gates on a GPU."""

from __future__ import annotations

import triton
from torch import Tensor

from nanoserve.kernels.device.launch import launch_options
from nanoserve.kernels.gated_activation.triton import gated_activation_kernel, sigmoid_mul_kernel
from nanoserve.kernels.gates import Activation

_BLOCK = 1024
"""Elements per program: with four warps, one wide load of each half per thread."""


def gated_activation_into(gate_up: Tensor, out: Tensor, *, activation: Activation, pdl: bool = False) -> None:
    """Compute out = activation(gate) * up, in float32.

    Args:
        gate_up: [M, 2 * size], contiguous, the gate in the first half and the up projection in the second.
        out: [M, size], contiguous, any float dtype; apart from `gate_up`.
        activation: of the gate.
        pdl: see `nanoserve.kernels.device.pdl`. Nothing is read before the wait.
    """
    num_rows, size = out.shape
    gated_activation_kernel[(num_rows * triton.cdiv(size, _BLOCK),)](
        gate_up,
        out,
        SIZE=size,
        ACTIVATION=activation,
        BLOCK=_BLOCK,
        PDL=pdl,
        num_warps=4,
        **launch_options(pdl),
    )


_BLOCK = 1024
"""Elements per program."""


def sigmoid_mul_into(x: Tensor, gate: Tensor, *, pdl: bool = False) -> None:
    """Multiply `x` by sigmoid(gate), in float32.

    Args:
        x: [M, size], contiguous, any float dtype; changed in place.
        gate: [M, size], rows contiguous; apart from `x`.
        pdl: see `nanoserve.kernels.device.pdl`. Nothing is read before the wait.
    """
    num_rows, size = x.shape
    sigmoid_mul_kernel[(num_rows * triton.cdiv(size, _BLOCK),)](
        x, gate, gate.stride(0), SIZE=size, BLOCK=_BLOCK, PDL=pdl, num_warps=4, **launch_options(pdl)
    )
