"""Descriptions of what parts multiply, of products and of mixtures of experts: devices plan memory, launch and check kernels by them."""

from __future__ import annotations

import attrs
from torch import Tensor

from nanoserve.adapters.pytorch.layers.norm import Norm
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.experts import Experts, Routing
from nanoserve.kernels.forms import Form, form_of
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


@attrs.frozen(eq=False, kw_only=True)
class Mixture:
    """The experts of one layer, and how tokens choose among them.

    Attributes:
        router: makes logits of a normed token.
        correction: float32 [E], added to scores for the choice, though not for the weights.
        counts: int64 [E], where the tokens of each expert are counted; None if they are not.
        record: flat int32, where the choice of tokens is left; None if it is not recorded.
        exact: whether logits are float32 whatever the weights are; on a GPU they always are.
    """

    router: Linear
    routing: Routing
    correction: Tensor | None
    counts: Tensor | None
    record: Tensor | None
    experts: Experts
    exact: bool

    @property
    def forms(self) -> tuple[Form, Form]:
        """How both weights of the experts are kept."""
        return form_of(self.experts.gate_up), form_of(self.experts.down)
