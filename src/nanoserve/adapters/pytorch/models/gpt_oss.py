"""gpt-oss (OpenAI 2025)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nanoserve.adapters.pytorch.layers.attention import Attention
from nanoserve.adapters.pytorch.layers.checkpoint import prefixed
from nanoserve.adapters.pytorch.layers.experts import Experts
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.models.decoder import DecoderModel


class StackedExperts(Experts):
    """Experts of which checkpoints hold one transposed stack, with each gate beside its up projection."""

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """The stacks in the memory of ours, until `arrange` has turned them."""
        assert self.gate_up_bias is not None
        assert self.down_bias is not None
        count, hidden, size = self.down.shape
        tensors = prefixed("router", self.router.checkpoint_tensors())
        tensors |= {
            "experts.gate_up_proj": self.gate_up.view(count, hidden, 2 * size),
            "experts.gate_up_proj_bias": self.gate_up_bias,
            "experts.down_proj": self.down.view(count, size, hidden),
            "experts.down_proj_bias": self.down_bias,
        }
        return self.norm_tensors() | prefixed("mlp", tensors)

    def stacks(self) -> dict[str, tuple[Tensor, Sequence[str]]]:
        """No others."""
        return {}

    def sections(self) -> dict[str, tuple[int, ...]]:
        """None: what belongs to an element of a feed lies together."""
        return {}

    def arrange(self) -> None:
        """Turn each expert's matrices, and put its gates before its up projections."""
        assert self.gate_up_bias is not None
        for gate_up, bias, down in zip(self.gate_up, self.gate_up_bias, self.down, strict=True):
            for target, rows in ((gate_up, gate_up.view(*gate_up.shape[::-1]).t()), (bias, bias)):
                stored = rows.clone()
                half = len(target) // 2
                target[:half].copy_(stored[::2])
                target[half:].copy_(stored[1::2])
            down.copy_(down.view(*down.shape[::-1]).t().clone())


class GptOss(DecoderModel):
    """Attention with sinks, in every second layer over a window, then a mixture of experts; biases everywhere."""

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """Attention over the tokens so far, then experts."""
        return Attention(self.spec, layer), StackedExperts(self.spec, layer)
