"""What a decoder layer is made of: parts, each of which reads the residual stream and adds to it.

A part says *what* is computed, once, for every device. *How* is the business of two plugs that a step hands to it: `Products`
computes products with weights, fused with the norm before or the addition after where a device can; the step itself computes
what mixes tokens, such as attention over a cache.
"""

from __future__ import annotations

from typing import Any, Protocol

import attrs
from torch import Tensor

from nanoserve.adapters.pytorch.layers.checkpoint import Stored
from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.silu_mul import silu_mul


class Products(Protocol):
    """How one step computes its products; holds the residual stream of the step's T tokens, [T, hidden].

    What `enter` and `enter_gated` return may be overwritten by the next call.
    """

    def enter(self, norm: RMSNorm, linear: Linear, /) -> Tensor:
        """linear(norm(stream)), [T, out_features]."""

    def enter_gated(self, norm: RMSNorm, gate_up: Linear, /) -> Tensor:
        """silu(gate) * up, [T, out_features / 2], where gate and up are the halves of gate_up(norm(stream))."""

    def follow(self, entered: Tensor, norm: RMSNorm, linear: Linear, /) -> Tensor:
        """linear(norm(entered)), of columns [T, in_features] of what `enter` returned, which stays as it is."""

    def leave(self, inner: Tensor, linear: Linear, /) -> None:
        """Add linear(inner) to the stream; `inner` is [T, in_features]."""


@attrs.frozen(eq=False)
class Product:
    """One product of a model: what a device must be able to compute, and the memory that takes.

    Attributes:
        norm: comes before it; None where its input is no residual stream and its result is added to the stream.
        gated: whether the weight's rows are those of a gate and an up projection.
    """

    name: str
    linear: Linear
    norm: RMSNorm | None = None
    gated: bool = False

    @property
    def width(self) -> int:
        """Elements of one row of the result."""
        return self.linear.out_features // (2 if self.gated else 1)


class Part(Stored):
    """A mixer, which lets tokens read one another, or a feed, which works on each token alone."""

    def run(self, products: Products, step: Any, /) -> None:
        """Add to the stream what this part makes of it. `step` computes the mixing; each mixer says what it asks of it."""
        raise NotImplementedError

    def products(self) -> tuple[Product, ...]:
        """Every product that `run` computes, in order."""
        raise NotImplementedError


class TorchProducts:
    """Products by torch's own operators, or by the packed form of a linear layer: what a CPU computes with.

    `stream` is the residual stream, replaced by each sum and never written into.
    """

    def __init__(self, stream: Tensor) -> None:
        self.stream = stream

    def enter(self, norm: RMSNorm, linear: Linear, /) -> Tensor:
        """See `Products`."""
        product: Tensor = linear(norm(self.stream))
        return product

    def enter_gated(self, norm: RMSNorm, gate_up: Linear, /) -> Tensor:
        """See `Products`."""
        return silu_mul(self.enter(norm, gate_up))

    def follow(self, entered: Tensor, norm: RMSNorm, linear: Linear, /) -> Tensor:
        """See `Products`."""
        product: Tensor = linear(norm(entered))
        return product

    def leave(self, inner: Tensor, linear: Linear, /) -> None:
        """See `Products`."""
        self.stream = self.stream + linear(inner)
