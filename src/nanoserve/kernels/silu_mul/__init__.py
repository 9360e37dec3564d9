"""The gate of SwiGLU (Shazeer 2020): SiLU of one half times the other half."""

from __future__ import annotations

from torch import Tensor

from nanoserve.kernels.silu_mul import torch_native


def silu_mul(gate_up: Tensor) -> Tensor:
    """Compute silu(gate) * up.

    Args:
        gate_up: [..., 2 * size], the gate in the first half and the up projection in the second.

    Returns:
        [..., size] in the dtype of `gate_up`.
    """
    return torch_native.silu_mul(gate_up)
