"""SiLU-and-multiply as its formula, in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """Compute gate / (1 + exp(-gate)) * up; float32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up
