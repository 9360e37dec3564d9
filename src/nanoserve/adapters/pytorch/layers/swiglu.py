"""The dense feed-forward network."""

from __future__ import annotations

from torch import Tensor

from nanoserve.adapters.pytorch.layers.checkpoint import prefixed, rows
from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.layers.part import Part, Product, Products
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.ports.layer_spec import DenseSpec
from nanoserve.ports.model_spec import ModelSpec


class SwiGLU(Part):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020); gate and up are one matrix, the gate's rows first."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        feed = spec.layers[layer].feed
        assert isinstance(feed, DenseSpec)
        self.size = feed.size
        self.norm = RMSNorm(spec.hidden_size, spec.norm)
        self.gate_up = Linear(spec.hidden_size, 2 * self.size, bias=feed.bias)
        self.down = Linear(self.size, spec.hidden_size, bias=feed.bias)

    def run(self, products: Products, _: object, /) -> None:
        """Stream + down(silu(gate(norm(stream))) * up(norm(stream)))."""
        products.leave(products.enter_gated(self.norm, self.gate_up), self.down)

    def products(self) -> tuple[Product, ...]:
        """Gate and up together, and down."""
        return Product("gate and up", self.gate_up, self.norm, gated=True), Product("down", self.down)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """As checkpoints of Llama and its relatives name them; gate and up are rows of one matrix here."""
        tensors = rows(self.gate_up, {"gate_proj": self.size, "up_proj": self.size})
        tensors |= prefixed("down_proj", self.down.checkpoint_tensors())
        norm = prefixed("post_attention_layernorm", self.norm.checkpoint_tensors())
        return norm | prefixed("mlp", tensors)
