"""The description of one product of a model, from which a device plans memory and checks its kernels."""

from __future__ import annotations

import attrs

from nanoserve.adapters.pytorch.layers.norm import Norm
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.ports.layer_spec import Activation


@attrs.frozen(eq=False)
class Product:
    """One product of a model: what a device must be able to compute, and the memory that takes.

    Attributes:
        norm: comes before it; None where there is none, as where its input is no residual stream.
        gate: the activation, if the weight's rows are those of a gate and an up projection.
        follows: whether it reads what another product has made of the stream.
        added: whether its result is added to the stream; `post_norm`, what norms it before.
    """

    name: str
    linear: Linear
    norm: Norm | None = None
    gate: Activation | None = None
    follows: bool = False
    added: bool = attrs.field(default=attrs.Factory(lambda self: self.norm is None, takes_self=True))
    post_norm: Norm | None = None

    @property
    def width(self) -> int:
        """Elements of one row of the result."""
        return self.linear.out_features // (1 if self.gate is None else 2)
