"""Products by torch's own operators, or by whatever packed form a linear layer has: what a CPU computes with."""

from __future__ import annotations

from torch import Tensor

from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.silu_mul import silu_mul


class TorchProducts:
    """Fulfils `Products`; `stream` is the residual stream, replaced by each sum and never written into."""

    def __init__(self, stream: Tensor) -> None:
        self.stream = stream

    def enter(self, norm: RMSNorm, linear: Linear, /) -> Tensor:
        """See `Products`."""
        product: Tensor = linear(norm(self.stream))
        return product

    def enter_gated(self, norm: RMSNorm, gate_up: Linear, /) -> Tensor:
        """See `Products`."""
        return silu_mul(self.enter(norm, gate_up))

    def leave(self, inner: Tensor, linear: Linear, /) -> None:
        """See `Products`."""
        self.stream = self.stream + linear(inner)
