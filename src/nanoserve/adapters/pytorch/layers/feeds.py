"""Dense feed-forward networks, of encoders and of Llama and its relatives."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from nanoserve.adapters.pytorch.layers.checkpoint import prefixed, rows
from nanoserve.adapters.pytorch.layers.norm import Norms
from nanoserve.adapters.pytorch.layers.part import LinearOps, Part
from nanoserve.adapters.pytorch.layers.product import Product
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.ports.layer_spec import DenseSpec
from nanoserve.ports.model_spec import ModelSpec

USUAL: Final = Norms("post_attention_layernorm")
"""The norms of a feed of Llama and its relatives."""


class MLP(Part):
    """down(activation(up(x))), or down(activation(gate(x)) * up(x)) (Shazeer 2020) with the gate's rows first in one matrix; `names` are theirs in a checkpoint."""

    def __init__(
        self, spec: ModelSpec, layer: int, norms: Norms = USUAL, names: tuple[str, str] = ("up", "down")
    ) -> None:
        super().__init__(spec, norms)
        feed = spec.layers[layer].feed
        assert isinstance(feed, DenseSpec)
        self._names, self.size, self.gated, self.activation = names, feed.size, feed.gated, feed.activation
        self.up = Linear(spec.hidden_size, (1 + feed.gated) * feed.size, bias=feed.bias)
        self.down = Linear(feed.size, spec.hidden_size, bias=feed.bias)

    def run(self, ops: LinearOps, _: object, /) -> None:
        """Add to the stream, and norm the sum where a family does."""
        project_in = ops.project_in_gated if self.gated else ops.project_in_activated
        ops.project_out(project_in(self.norm, self.up, self.activation), self.down, self.post_norm)
        ops.norm_stream(self.sum_norm)

    def products(self) -> tuple[Product, ...]:
        """Up, with the gate if there is one, and down."""
        gate = self.activation if self.gated else None
        up = Product("gate and up" if gate else "up", self.up, self.norm, gate=gate, added=False)
        return up, Product("down", self.down, post_norm=self.post_norm)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        up, down = (
            prefixed(name, linear.checkpoint_tensors())
            for name, linear in zip(self._names, (self.up, self.down), strict=True)
        )
        return self.norm_tensors() | up | down


class SwiGLU(MLP):
    """The feed of Llama and its relatives, whose checkpoints hold gate and up apart."""

    def projection_tensors(self) -> dict[str, Tensor]:
        """Gate and up, by their names there."""
        return rows(self.up, {"gate_proj": self.size, "up_proj": self.size})

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        down = prefixed("down_proj", self.down.checkpoint_tensors())
        return self.norm_tensors() | prefixed("mlp", self.projection_tensors() | down)
