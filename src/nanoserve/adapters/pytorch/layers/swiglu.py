"""The dense feed-forward network."""

from __future__ import annotations

from torch import Tensor

from nanoserve.adapters.pytorch.layers.checkpoint import prefixed, rows
from nanoserve.adapters.pytorch.layers.norm import Norms
from nanoserve.adapters.pytorch.layers.part import LinearOps, Part
from nanoserve.adapters.pytorch.layers.product import Product
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.ports.layer_spec import DenseSpec
from nanoserve.ports.model_spec import ModelSpec


class SwiGLU(Part):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020), or with the spec's other activation; gate and up are one matrix, the gate's rows first."""

    def __init__(
        self,
        spec: ModelSpec,
        layer: int,
        norms: Norms = Norms("post_attention_layernorm"),  # noqa: B008
    ) -> None:
        super().__init__(spec, norms)
        feed = spec.layers[layer].feed
        assert isinstance(feed, DenseSpec)
        self.size, self.activation = feed.size, feed.activation
        self.gate_up = Linear(spec.hidden_size, 2 * self.size, bias=feed.bias)
        self.down = Linear(self.size, spec.hidden_size, bias=feed.bias)

    def run(self, ops: LinearOps, _: object, /) -> None:
        """Stream + down(activation(gate(norm(stream))) * up(norm(stream)))."""
        gated = ops.project_in_gated(self.norm, self.gate_up, self.activation)
        ops.project_out(gated, self.down, self.post_norm)

    def products(self) -> tuple[Product, ...]:
        """Gate and up together, and down."""
        gate_up = Product("gate and up", self.gate_up, self.norm, gate=self.activation, added=False)
        return gate_up, Product("down", self.down, post_norm=self.post_norm)

    def projection_tensors(self) -> dict[str, Tensor]:
        """Gate and up, as checkpoints of Llama and its relatives name them; here they are rows of one matrix."""
        return rows(self.gate_up, {"gate_proj": self.size, "up_proj": self.size})

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """As checkpoints of Llama and its relatives name them."""
        tensors = self.projection_tensors()
        tensors |= prefixed("down_proj", self.down.checkpoint_tensors())
        return self.norm_tensors() | prefixed("mlp", tensors)
