"""The plain linear layer, a weight as checkpoints store it, [out_features, in_features], and what packed ones share."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn


class Linear(nn.Module):
    """x -> x W^T + b, without gradients and with nothing initialised.

    This form holds the weight as checkpoints do; each `PackedLinear` holds it otherwise.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        return F.linear(x, self.weight, self.bias)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """The tensors a checkpoint fills, by their names there."""
        return {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}


class PackedLinear(Linear):
    """A linear layer whose weight is held in another form, made from a plain one; there is no `weight`."""

    def __init__(self, plain: Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = plain.in_features, plain.out_features, plain.bias
