"""Norm layers: the RMS norm, and the layer norm of encoders."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.layers.checkpoint import Stored, prefixed
from nanoserve.kernels.pointwise import layer_norm, rms_norm
from nanoserve.ports.model_spec import NormSpec


@attrs.frozen
class Norms:
    """A part's norms, by their names in a checkpoint: of its input from the stream, of its output, and of the sum."""

    before: str | None
    after: str | None = None
    of_sum: str | None = None

    def tensors(self, *norms: Norm | None) -> dict[str, Tensor]:
        """The tensors of a part's norms, in the order of their names here, as a checkpoint holds them."""
        named = zip((self.before, self.after, self.of_sum), norms, strict=True)
        found = [
            prefixed(name, norm.checkpoint_tensors()) for name, norm in named if name and norm is not None
        ]
        return {name: tensor for each in found for name, tensor in each.items()}


class RMSNorm(Stored):
    """Norms the last dimension of `size` elements. The dtype of its weight says when kernels round: with a float32 weight only after the product with it."""

    def __init__(self, size: int, spec: NormSpec) -> None:
        super().__init__()
        dtype = None if spec.form == "rounded" else torch.float32
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        self.eps, self._is_zero_centered = spec.eps, spec.form == "zero_centered"

    def __call__(self, x: Tensor) -> Tensor:
        """[..., size] to the same shape."""
        return rms_norm(x, self.weight, self.eps)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    def fill_plainly(self) -> None:
        """Norm, and scale by one."""
        self.weight.fill_(0 if self._is_zero_centered else 1)

    def arrange(self) -> None:
        """Hold the factors."""
        if self._is_zero_centered:
            self.weight.add_(1)


class LayerNorm(Stored):
    """A layer norm (Ba et al. 2016) of the last dimension, of `size` elements, with or without a bias."""

    def __init__(self, size: int, spec: NormSpec) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(size), requires_grad=False) if spec.bias else None
        self.eps = spec.eps

    def __call__(self, x: Tensor) -> Tensor:
        """[..., size] to the same shape."""
        return layer_norm(x, self.weight, self.bias, self.eps)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight} if self.bias is None else {"weight": self.weight, "bias": self.bias}

    def fill_plainly(self) -> None:
        """Norm, scale by one and add nothing."""
        self.weight.fill_(1)
        if self.bias is not None:
            self.bias.zero_()


Norm = RMSNorm | LayerNorm


def make_norm(size: int, spec: NormSpec) -> Norm:
    """The norm of a spec."""
    return LayerNorm(size, spec) if spec.form == "layer" else RMSNorm(size, spec)
