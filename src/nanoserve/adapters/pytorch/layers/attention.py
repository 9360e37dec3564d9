"""Self-attention over the paged cache: project, rotate, write keys and values, attend, project back."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.layers.checkpoint import prefixed, rows
from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.layers.step_state import StepState
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.paged_attention import paged_attention
from nanoserve.kernels.rope import apply_rotation
from nanoserve.ports.model_spec import ModelSpec


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023); q, k and v are one matrix, its rows in that order.

    `qk_norm` norms each head of q and k before the rotation.
    """

    qkv: nn.Module
    output: nn.Module

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads, self.num_kv_heads = spec.num_heads, spec.num_kv_heads
        self.head_dim, self.scale = spec.head_dim, spec.head_dim**-0.5
        width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        self.qkv = Linear(spec.hidden_size, width, bias=spec.qkv_bias)
        self.output = Linear(spec.num_heads * spec.head_dim, spec.hidden_size, bias=spec.output_bias)
        self.q_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None
        self.k_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None

    def forward(self, x: Tensor, step: StepState) -> Tensor:
        """[T, hidden] to [T, hidden]; writes the tokens' keys and values on the way."""
        group = step.by_layer[self.layer]
        keys, values = step.kv.keys[self.layer], step.kv.values[self.layer]
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)
        qk, value = heads[:, : -self.num_kv_heads], heads[:, -self.num_kv_heads :]
        query, key = self._rotated(qk, step)
        keys.transpose(1, 2).index_put_((group.blocks, group.offsets), key)
        values.transpose(1, 2).index_put_((group.blocks, group.offsets), value)
        attended = paged_attention(query, keys, values, group.plan, scale=self.scale)
        projected: Tensor = self.output(attended.flatten(1))
        return projected

    def _rotated(self, qk: Tensor, step: StepState) -> tuple[Tensor, Tensor]:
        if self.q_norm is not None and self.k_norm is not None:
            query, key = qk[:, : self.num_heads], qk[:, self.num_heads :]
            qk = torch.cat((self.q_norm(query), self.k_norm(key)), dim=1)
        qk = apply_rotation(qk, step.cos, step.sin)
        return qk[:, : self.num_heads], qk[:, self.num_heads :]

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """The tensors a checkpoint fills, by their names there; q, k and v are rows of one matrix here."""
        assert isinstance(self.qkv, Linear)
        assert isinstance(self.output, Linear)
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        tensors = rows(self.qkv, {"q_proj": q, "k_proj": kv, "v_proj": kv})
        tensors |= prefixed("o_proj", self.output.checkpoint_tensors())
        for name, norm in (("q_norm", self.q_norm), ("k_norm", self.k_norm)):
            if norm is not None:
                tensors |= prefixed(name, norm.checkpoint_tensors())
        return tensors
