"""The plain linear layer, with a weight as checkpoints store it, [out_features, in_features], and the base of packed ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from nanoserve.kernels.forms import Form, StoredWeight


class Linear(nn.Module):
    """x -> x W^T + b, without gradients and with nothing initialised.

    This form holds the weight as checkpoints do; each `PackedLinear` holds it otherwise. All are called without `nn.Module`'s hooks, as norms
    are: a look for hooks takes as long as a small operator.
    """

    kept: ClassVar[str] = ""
    """The name of the form that weights are rounded to, if they are."""
    told: ClassVar[str] = "torch's own, of plain weights"
    """The product, for people."""
    weight: nn.Parameter
    weight_scales: nn.Parameter | None
    weight_form: Form | None
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.weight_scales, self.weight_form = None, None
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        return F.linear(x, self.weight, self.bias)

    @property
    def matrix(self) -> Tensor | StoredWeight:
        """The weight [out_features, in_features] as kernels take it, which may be kept as its checkpoint stores it."""
        return in_form(self.weight_form, self.weight, self.weight_scales)

    def by_rows(self) -> tuple[Tensor, ...]:
        """All that lies in the order of the output, [out_features, ...], to be put into another order."""
        numbers = self.weight if self.weight_scales is None else self.weight.view(torch.uint8)
        return tuple(each for each in (numbers, self.weight_scales, self.bias) if each is not None)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """The tensors a checkpoint fills, by their names there."""
        return {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}


def in_form(form: Form | None, numbers: Tensor, scales: Tensor | None) -> Tensor | StoredWeight:
    """A weight as kernels take it; without scales it is plain."""
    return numbers if form is None or scales is None else StoredWeight(form, numbers, scales)


ROWS: Final = 16
"""More make prompts faster and single rows slower: a weight is read once per call, and a call computes all its rows."""


def in_fixed_rows(product: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """product(x), of any rows [T, in_features], by calls with `ROWS` rows, filled up with zeros: the same bits for a row in any company.

    Libraries choose their kernels, and with them the order of each sum, by the shape of a product.
    """
    padded = F.pad(x, (0, 0, 0, -len(x) % ROWS))
    return torch.cat([product(piece) for piece in torch.split(padded, ROWS)])[: len(x)]


class PackedLinear(Linear):
    """A linear layer whose weight is held in another form, made from a plain one; there is no `weight`."""

    def __init__(self, plain: Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = plain.in_features, plain.out_features, plain.bias
        self.weight_form = None
