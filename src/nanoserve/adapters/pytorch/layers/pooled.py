"""Layers that pooled vectors pass through: those of a classifier, or those that sentence-transformers puts behind a pooler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from nanoserve.adapters.pytorch.layers.checkpoint import Stored, prefixed
from nanoserve.adapters.pytorch.layers.norm import make_norm
from nanoserve.ports.model_spec import NormSpec, PooledLayer

_FUNCTIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "none": lambda x: x,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
}


class PooledDense(Stored):
    """One such layer; its product is torch's own on every device, of few rows and once a text."""

    def __init__(self, spec: PooledLayer, size: int, norm: NormSpec) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.empty(spec.size, size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(spec.size), requires_grad=False) if spec.bias else None
        self.norm = make_norm(spec.size, norm) if spec.norm else None

    def __call__(self, x: Tensor) -> Tensor:
        """[P, size before] to [P, size], in the dtype of the weights."""
        made = _FUNCTIONS[self.spec.activation](F.linear(x.to(self.weight.dtype), self.weight, self.bias))
        return made if self.norm is None else self.norm(made)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {"weight": self.weight}
        if self.bias is not None:
            tensors["bias"] = self.bias
        tensors = prefixed(self.spec.name, tensors)
        if self.norm is not None and self.spec.norm is not None:
            tensors |= prefixed(self.spec.norm, self.norm.checkpoint_tensors())
        return tensors


def make_pooled(layers: Sequence[PooledLayer], size: int, norm: NormSpec) -> nn.ModuleList:
    """The layers; the first reads `size` numbers."""
    sizes = [size, *(each.size for each in layers)]
    return nn.ModuleList(PooledDense(each, before, norm) for each, before in zip(layers, sizes, strict=False))
