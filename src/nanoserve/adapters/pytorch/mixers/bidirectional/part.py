"""Self-attention of an encoder: project, attend to both sides, project back."""

from __future__ import annotations

from torch import Tensor

from nanoserve.adapters.pytorch.layers.checkpoint import prefixed, rows
from nanoserve.adapters.pytorch.layers.norm import Norms
from nanoserve.adapters.pytorch.layers.part import LinearOps, Part, Step
from nanoserve.adapters.pytorch.layers.product import Product
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.ports.layer_spec import BidirectionalSpec
from nanoserve.ports.model_spec import ModelSpec


class BidirectionalAttention(Part):
    """Multi-head attention (Vaswani et al. 2017); q, k and v are one matrix, its rows in that order.

    A step mixes [T, 3 num_heads head_dim] projections to attended values [T, num_heads head_dim]: it rotates q and k, unless the rotation turns nothing.
    """

    def __init__(
        self, spec: ModelSpec, layer: int, norms: Norms, projections: tuple[str, ...], output: str
    ) -> None:
        """`projections` are the names of q, k and v in a checkpoint, or that of all three together; `output` that of the way back."""
        super().__init__(spec, norms)
        mixer = spec.layers[layer].mixer
        assert isinstance(mixer, BidirectionalSpec)
        self.layer, self.rotation, self.window = layer, mixer.rotation, mixer.window
        self.num_heads, self.head_dim = mixer.num_heads, mixer.head_dim
        self.scale, width = self.head_dim**-0.5, mixer.num_heads * mixer.head_dim
        self._projections, self._output = projections, output
        self.qkv = Linear(spec.hidden_size, 3 * width, bias=mixer.bias)
        self.output = Linear(width, spec.hidden_size, bias=mixer.bias)

    def run(self, ops: LinearOps, step: Step, /) -> None:
        """Stream + output(attend(qkv(norm(stream)))), or the norm of that."""
        ops.project_out(step.mix(self, ops.project_in(self.norm, self.qkv)), self.output, self.post_norm)
        ops.norm_stream(self.sum_norm)

    def products(self) -> tuple[Product, ...]:
        """The projections to q, k and v, and back."""
        qkv = Product("qkv", self.qkv, self.norm, added=False)
        return qkv, Product("output", self.output, post_norm=self.post_norm)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        size = self.qkv.out_features // len(self._projections)
        tensors = rows(self.qkv, dict.fromkeys(self._projections, size))
        return self.norm_tensors() | tensors | prefixed(self._output, self.output.checkpoint_tensors())
