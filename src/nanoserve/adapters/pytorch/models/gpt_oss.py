"""gpt-oss (OpenAI 2025)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.layers.checkpoint import prefixed
from nanoserve.adapters.pytorch.layers.experts import Experts
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.models.decoder import DecoderModel


class StackedExperts(Experts):
    """Experts that checkpoints hold as one transposed stack, with each gate beside its up projection."""

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """The stacks in the memory of ours, until `arrange` has turned them."""
        assert self.gate_up_bias is not None
        assert self.down_bias is not None
        tensors = prefixed("router", self.router.checkpoint_tensors())
        tensors |= {
            "experts.gate_up_proj": self._as_stored(self.gate_up),
            "experts.gate_up_proj_bias": self.gate_up_bias,
            "experts.down_proj": self._as_stored(self.down),
            "experts.down_proj_bias": self.down_bias,
        }
        return self.norm_tensors() | prefixed("mlp", tensors)

    def _as_stored(self, stack: Tensor) -> Tensor:
        """Transposed, but where it is packed."""
        count, rows, columns = stack.shape
        return stack if stack.dtype is torch.uint8 else stack.view(count, columns, rows)

    def stacks(self) -> dict[str, tuple[Tensor, Sequence[str]]]:
        return {}

    def sections(self) -> dict[str, tuple[int, ...]]:
        """None, because all numbers of an element of a feed are together."""
        return {}

    def arrange(self) -> None:
        """Turn each expert's matrices, and put its gates before its up projections."""
        assert self.gate_up_bias is not None
        if self.gate_up_scales is None:
            for stack in (self.gate_up, self.down):
                for expert in stack:
                    expert.copy_(expert.view(*expert.shape[::-1]).t().clone())
        interleaved = (self.gate_up, self.gate_up_scales, self.gate_up_bias)
        for stack in (each for each in interleaved if each is not None):
            for expert in stack:
                expert.copy_(torch.cat((expert[::2], expert[1::2])))


class GptOss(DecoderModel):
    """Attention with sinks, in every second layer over a window, then a mixture of experts; biases everywhere."""

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """Attention over the tokens so far, then experts."""
        return Attention(self.spec, layer), StackedExperts(self.spec, layer)
