"""The RMS norm layer."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.layers.checkpoint import Stored
from nanoserve.kernels.pointwise import rms_norm
from nanoserve.ports.model_spec import NormSpec


@attrs.frozen
class Norms:
    """Where a part norms, by the names of its norms in a checkpoint: what it reads of the stream, and what it adds to it."""

    before: str | None
    after: str | None = None


class RMSNorm(Stored):
    """Norms the last dimension of `size` elements.

    The dtype of its weight says when kernels round: with a float32 weight only after the product with it.
    """

    def __init__(self, size: int, spec: NormSpec) -> None:
        super().__init__()
        dtype = None if spec.form == "rounded" else torch.float32
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self.eps, self._is_zero_centered = spec.eps, spec.form == "zero_centered"

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] to the same shape."""
        return rms_norm(x, self.weight, self.eps)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Its weight."""
        return {"weight": self.weight}

    def fill_plainly(self) -> None:
        """Norm, and scale by one."""
        self.weight.fill_(0 if self._is_zero_centered else 1)

    def arrange(self) -> None:
        """Hold what is multiplied with."""
        if self._is_zero_centered:
            self.weight.add_(1)
