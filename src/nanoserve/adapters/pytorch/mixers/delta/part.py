"""A gated delta net: linear attention over a recurrent state, behind a short convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.layers.checkpoint import prefixed, rows
from nanoserve.adapters.pytorch.layers.norm import Norms, RMSNorm
from nanoserve.adapters.pytorch.layers.part import LinearOps, Part, Step
from nanoserve.adapters.pytorch.layers.product import Product
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.kernels.recurrent import DeltaHeads, DeltaWeights
from nanoserve.ports.layer_spec import DeltaSpec
from nanoserve.ports.model_spec import ModelSpec, NormSpec

FASTEST_DECAY = 16.0
"""Decay of the heads of a model that is not trained yet, as in transformers; the slowest keeps 1 / 0.01 tokens."""


def heads_of(mixer: DeltaSpec) -> DeltaHeads:
    """Its dimensions, as kernels know them."""
    heads = (mixer.num_key_heads, mixer.num_value_heads, mixer.key_dim, mixer.value_dim)
    return DeltaHeads(*heads, mixer.taps)


class DeltaNet(Part):
    """The gated delta rule (Yang et al. 2024), see `kernels.delta_rule`, between two projections.

    All that is projected is one matrix, its rows in the order of `DeltaHeads.width`. A step mixes [T, heads.width] projections
    to results [T, heads.inner], and leaves the rows' states as they are after their tokens.
    """

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__(spec, Norms("input_layernorm"))
        mixer = spec.layers[layer].mixer
        assert isinstance(mixer, DeltaSpec)
        self.layer, self.heads = layer, heads_of(mixer)
        self.project = Linear(spec.hidden_size, self.heads.width)
        self.convolution = nn.Parameter(torch.empty(self.heads.channels, mixer.taps), requires_grad=False)
        rates = torch.empty(2, mixer.num_value_heads, dtype=torch.float32)
        self.decay_log, self.decay_bias = (nn.Parameter(each.clone(), requires_grad=False) for each in rates)
        self.head_norm = RMSNorm(mixer.value_dim, NormSpec(eps=spec.norm.eps))
        self.output = Linear(self.heads.inner, spec.hidden_size)

    @property
    def weights(self) -> DeltaWeights:
        """The weights that the rule reads beside the projections."""
        norm = self.head_norm
        return DeltaWeights(self.convolution, self.decay_log, self.decay_bias, norm.weight, norm.eps)

    def run(self, ops: LinearOps, step: Step, /) -> None:
        """Stream + output(rule(project(norm(stream))))."""
        ops.project_out(step.mix(self, ops.project_in(self.norm, self.project)), self.output, self.post_norm)

    def products(self) -> tuple[Product, ...]:
        """The projections to all that the rule reads, and back."""
        return Product("delta net", self.project, self.norm), Product("delta net's output", self.output)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """As checkpoints of Qwen3-Next name them."""
        ba = 2 * self.heads.num_value_heads
        tensors = rows(self.project, {"in_proj_qkvz": self.heads.width - ba, "in_proj_ba": ba})
        tensors |= {"conv1d.weight": self.convolution[:, None], "A_log": self.decay_log}
        tensors |= {"dt_bias": self.decay_bias}
        tensors |= prefixed("norm", self.head_norm.checkpoint_tensors())
        tensors |= prefixed("out_proj", self.output.checkpoint_tensors())
        return self.norm_tensors() | prefixed("linear_attn", tensors)

    def sections(self) -> dict[str, tuple[int, ...]]:
        """Queries, keys and values, which one convolution goes over."""
        keys, values = self.heads.num_key_heads * self.heads.key_dim, self.heads.inner
        return {"linear_attn.conv1d.weight": (keys, keys, values)}

    def fill_plainly(self) -> None:
        """Let some heads remember long and some short."""
        count = self.heads.num_value_heads
        self.decay_log.copy_(torch.linspace(0.01, FASTEST_DECAY, count).log())
        self.decay_bias.fill_(1)

    def arrange(self) -> None:
        """Sort the rows of the projections: checkpoints have those of each key head, and of its value heads, together."""
        order = self._order()
        for tensor in self.project.by_rows():
            tensor.copy_(tensor[order])

    def _order(self) -> Tensor:
        """Which row of a checkpoint each row is."""
        heads = self.heads
        group = heads.num_value_heads // heads.num_key_heads
        values = group * heads.value_dim
        first = heads.channels + heads.inner
        qkvz = torch.arange(first).view(heads.num_key_heads, -1)
        ba = torch.arange(first, heads.width).view(heads.num_key_heads, -1)
        parts = torch.split(qkvz, [heads.key_dim, heads.key_dim, values, values], dim=1)
        return torch.cat([each.flatten() for each in (*parts, *torch.split(ba, group, dim=1))])
