"""The parts of a mixture of experts, as products compute it."""

from __future__ import annotations

import attrs
from torch import Tensor

from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.experts import Experts, Routing
from nanoserve.kernels.forms import Form, form_of


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
