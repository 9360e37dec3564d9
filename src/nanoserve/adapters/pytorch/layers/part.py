"""The parts of a decoder layer, each of which reads the residual stream and adds to it.

A part says *what* is computed, once, for every device. Two interfaces say *how*: `LinearOps` computes products with weights, fused with the norm before or the
addition after where a device can; the step computes what mixes tokens, such as attention over a cache.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from nanoserve.adapters.pytorch.layers.checkpoint import Stored
from nanoserve.adapters.pytorch.layers.norm import Norm, Norms, RMSNorm, make_norm
from nanoserve.adapters.pytorch.layers.product import Mixture, Product
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.ports.layer_spec import Activation
from nanoserve.ports.model_spec import ModelSpec


class LinearOps(Protocol):
    """The products of one step; holds the residual stream of the step's T tokens, [T, hidden].

    What `project_in` and `project_in_gated` return may be overwritten by the next call.
    """

    def project_in(self, norm: Norm | None, linear: Linear, /) -> Tensor:
        """linear(norm(stream)), [T, out_features]; without a norm linear(stream)."""

    def project_in_activated(self, norm: Norm | None, linear: Linear, activation: Activation, /) -> Tensor:
        """activation(linear(norm(stream))), [T, out_features]."""

    def project_in_gated(self, norm: Norm | None, gate_up: Linear, activation: Activation, /) -> Tensor:
        """activation(gate) * up, [T, out_features / 2], where gate and up are the halves of what `project_in` gives."""

    def project(self, entered: Tensor, norm: RMSNorm, linear: Linear, /) -> Tensor:
        """linear(norm(entered)), of columns [T, in_features] of what `project_in` returned, which stays as it is."""

    def project_out(self, inner: Tensor, linear: Linear, norm: Norm | None = None, /) -> None:
        """Add linear(inner), or norm(linear(inner)), to the stream; `inner` is [T, in_features]."""

    def norm_stream(self, norm: Norm | None, /) -> None:
        """Put norm(stream), if there is one, in the stream's place."""

    def experts(self, norm: RMSNorm, mixture: Mixture, /) -> None:
        """Add to the stream the weighted sum of what its experts make of each token's norm(stream)."""


class Step(Protocol):
    """The mixing of one step's T tokens."""

    def mix(self, part: Any, /, *projected: Tensor) -> Tensor:
        """The mix of a mixer's projections of all tokens: [T, in_features of its output]; `part` is the mixer. Also writes the layer's cache of the tokens."""


class Part(Stored):
    """A mixer, which lets tokens read one another, or a feed, which works on each token alone.

    Attributes:
        norm: of what it reads of the stream; None where it reads it as it is.
        post_norm: of what it adds to the stream, where a family norms that.
        sum_norm: of the stream with what it has added, where a family norms that.
    """

    def __init__(self, spec: ModelSpec, norms: Norms) -> None:
        super().__init__()
        self._norms = norms
        self.norm = make_norm(spec.hidden_size, spec.norm) if norms.before else None
        self.post_norm = make_norm(spec.hidden_size, spec.norm) if norms.after else None
        self.sum_norm = make_norm(spec.hidden_size, spec.norm) if norms.of_sum else None

    def norm_tensors(self) -> dict[str, Tensor]:
        """The norms' tensors as a checkpoint holds them."""
        return self._norms.tensors(self.norm, self.post_norm, self.sum_norm)

    def run(self, ops: LinearOps, step: Step, /) -> None:
        """Add this part's output to the stream."""
        raise NotImplementedError

    def products(self) -> tuple[Product, ...]:
        """Every product that `run` computes, in order."""
        raise NotImplementedError

    def mixture(self) -> Mixture | None:
        """The experts, where this part is made of some."""
        return None
