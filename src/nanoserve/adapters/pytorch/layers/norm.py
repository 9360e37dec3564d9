"""The RMS norm layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nanoserve.kernels.rms_norm import rms_norm


class RMSNorm(nn.Module):
    """Norms the last dimension of `size` elements."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] to the same shape."""
        return rms_norm(x, self.weight, self.eps)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """The tensors a checkpoint fills, by their names there."""
        return {"weight": self.weight}
