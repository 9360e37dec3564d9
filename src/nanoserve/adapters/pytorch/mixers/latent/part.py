"""Multi-head latent attention over the paged cache: project down, attend to latents, project back."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.layers.checkpoint import prefixed, rows
from nanoserve.adapters.pytorch.layers.norm import Norms, RMSNorm
from nanoserve.adapters.pytorch.layers.part import LinearOps, Part, Step
from nanoserve.adapters.pytorch.layers.product import Product
from nanoserve.adapters.pytorch.layers.rotary import kernel_order
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.ports.layer_spec import LatentSpec
from nanoserve.ports.model_spec import ModelSpec, NormSpec

INNER_NORM: Final = NormSpec(eps=1e-6)
"""The epsilon of the norms of latents and of query vectors: transformers uses 1e-6 whatever `rms_norm_eps` says."""


class LatentAttention(Part):
    """Multi-head latent attention (DeepSeek-AI 2024) in its absorbed form.

    The products that would make each head's keys and values of all latents are applied to the newest tokens instead: to
    the query, and to the attended latent. So the cache is read as it is.

    A step mixes queries [T, num_heads (nope_dim + rope_dim)] and what is projected of each token, [T, latent_dim + rope_dim],
    its latent before the norm and its key before the rotation, to attended values [T, num_heads value_dim].

    Attributes:
        down: to the queries, or to what they are made of, and then to latent and rotated key.
        up: [num_heads (nope_dim + value_dim), latent_dim], per head the rows of its key and then of its value.
    """

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__(spec, Norms("input_layernorm"))
        mixer = spec.layers[layer].mixer
        assert isinstance(mixer, LatentSpec)
        self.layer, self.rotation, self.scale = layer, mixer.rotation, mixer.scale
        self.num_heads, self.latent_dim, self.rope_dim = mixer.num_heads, mixer.latent_dim, mixer.rope_dim
        self.nope_dim, self.value_dim = mixer.nope_dim, mixer.value_dim
        self.head_dim = self.nope_dim + self.rope_dim
        queries = self.num_heads * self.head_dim
        self.query_dim = mixer.query_dim
        self.split = self.query_dim or queries
        self.down = Linear(spec.hidden_size, self.split + self.latent_dim + self.rope_dim, bias=mixer.bias)
        self.query_norm = RMSNorm(self.query_dim, INNER_NORM) if self.query_dim else None
        self.query_up = Linear(self.query_dim, queries) if self.query_dim else None
        self.latent_norm = RMSNorm(self.latent_dim, INNER_NORM)
        up = torch.empty(self.num_heads * (self.nope_dim + self.value_dim), self.latent_dim)
        self.up = nn.Parameter(up, requires_grad=False)
        self.output = Linear(self.num_heads * self.value_dim, spec.hidden_size, bias=mixer.bias)

    @property
    def up_keys(self) -> Tensor:
        """[num_heads, nope_dim, latent_dim]: takes queries to latents."""
        return self._up_by_head()[:, : self.nope_dim]

    @property
    def up_values(self) -> Tensor:
        """[num_heads, latent_dim, value_dim]: takes latents to values."""
        return self._up_by_head()[:, self.nope_dim :].transpose(1, 2)

    def _up_by_head(self) -> Tensor:
        return self.up.view(self.num_heads, self.nope_dim + self.value_dim, self.latent_dim)

    def run(self, ops: LinearOps, step: Step, /) -> None:
        """Stream + output(attend(queries, latents)), both projections of norm(stream)."""
        entered = ops.project_in(self.norm, self.down)
        queries, projected = entered[:, : self.split], entered[:, self.split :]
        if self.query_norm is not None and self.query_up is not None:
            queries = ops.project(queries, self.query_norm, self.query_up)
        ops.project_out(step.mix(self, queries, projected), self.output, self.post_norm)

    def products(self) -> tuple[Product, ...]:
        """The projections down, up to queries where there is one, and back."""
        found = [Product("latents", self.down, self.norm)]
        if self.query_norm is not None and self.query_up is not None:
            found.append(Product("queries", self.query_up, self.query_norm, follows=True))
        return *found, Product("output", self.output)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """As checkpoints of DeepSeek name them; the first projections are rows of one matrix here."""
        first = "q_a_proj" if self.query_dim else "q_proj"
        tensors = rows(self.down, {first: self.split, "kv_a_proj_with_mqa": self.latent_dim + self.rope_dim})
        tensors |= prefixed("kv_a_layernorm", self.latent_norm.checkpoint_tensors())
        tensors |= {"kv_b_proj.weight": self.up}
        tensors |= prefixed("o_proj", self.output.checkpoint_tensors())
        if self.query_norm is not None and self.query_up is not None:
            tensors |= prefixed("q_a_layernorm", self.query_norm.checkpoint_tensors())
            tensors |= prefixed("q_b_proj", self.query_up.checkpoint_tensors())
        else:
            tensors.pop("q_proj.bias", None)
        return self.norm_tensors() | prefixed("self_attn", tensors)

    def arrange(self) -> None:
        """Put the rotated elements of queries and keys into the kernels' order."""
        if self.down.bias is not None and not self.query_dim:
            self.down.bias[: self.split] = 0  # queries that are projected at once have none
        order = kernel_order(*self.rotation)
        query_up = self.down if self.query_up is None else self.query_up
        queries = [each[: self.num_heads * self.head_dim] for each in query_up.by_rows() if each.dim() == 2]
        heads = [each.view(self.num_heads, self.head_dim, -1).transpose(0, 1) for each in queries]
        for tensor in (*heads, *self.down.by_rows()):
            turned = tensor[-self.rope_dim :]
            turned.copy_(turned[order])
