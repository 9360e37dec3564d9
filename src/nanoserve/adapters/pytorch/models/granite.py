"""Granite 3 with experts (Granite Team, IBM 2024); the dense models share Llama's page."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nanoserve.adapters.pytorch.layers.checkpoint import prefixed
from nanoserve.adapters.pytorch.layers.experts import Experts
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.models.decoder import DecoderModel


class StackedExperts(Experts):
    """Experts that checkpoints hold as one stack, in this engine's order, under Granite's names."""

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        tensors = prefixed("router.layer", self.router.checkpoint_tensors())
        tensors |= {"input_linear.weight": self.gate_up, "output_linear.weight": self.down}
        return self.norm_tensors() | prefixed("block_sparse_moe", tensors)

    def stacks(self) -> dict[str, tuple[Tensor, Sequence[str]]]:
        block = "block_sparse_moe"
        return {
            f"{block}.experts.gate_up_proj": (self.gate_up, [f"{block}.input_linear.weight"]),
            f"{block}.experts.down_proj": (self.down, [f"{block}.output_linear.weight"]),
            f"{block}.router.weight": (self.router.weight, [f"{block}.router.layer.weight"]),
        }

    def sections(self) -> dict[str, tuple[int, ...]]:
        """Gates and up projections, under either name."""
        return self.halves("block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.gate_up_proj")


class GraniteMoe(DecoderModel):
    """Attention, then a mixture of experts, in every layer.

    The scales of embeddings, attention, layers' additions and logits are numbers of the spec. That of additions costs nothing: the
    residual stream is kept divided by it (`ModelSpec.stream_unit`), and a norm gives the same of a stream and of the stream divided.
    """

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """Attention over the tokens so far, then experts."""
        return Attention(self.spec, layer), StackedExperts(self.spec, layer)
