"""The feed-forward network."""

from __future__ import annotations

from torch import Tensor, nn

from nanoserve.adapters.pytorch.layers.checkpoint import prefixed, rows
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.silu_mul import silu_mul
from nanoserve.ports.model_spec import ModelSpec


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020); gate and up are one matrix, the gate's rows first."""

    gate_up: nn.Module
    down: nn.Module

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.size = spec.intermediate_size
        self.gate_up = Linear(spec.hidden_size, 2 * self.size, bias=spec.mlp_bias)
        self.down = Linear(self.size, spec.hidden_size, bias=spec.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        projected: Tensor = self.down(silu_mul(self.gate_up(x)))
        return projected

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """The tensors a checkpoint fills, by their names there; gate and up are rows of one matrix here."""
        assert isinstance(self.gate_up, Linear)
        assert isinstance(self.down, Linear)
        tensors = rows(self.gate_up, {"gate_proj": self.size, "up_proj": self.size})
        return tensors | prefixed("down_proj", self.down.checkpoint_tensors())
