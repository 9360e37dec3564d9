"""The weights of self-attention, and their tensors in checkpoints."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nanoserve.adapters.pytorch.layers.checkpoint import prefixed, rows
from nanoserve.adapters.pytorch.layers.norm import Norms, RMSNorm
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.layers.product import Product
from nanoserve.adapters.pytorch.layers.rotary import gates_last, turn_heads
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.ports.layer_spec import AttentionSpec
from nanoserve.ports.model_spec import ModelSpec


class AttentionWeights(Part):
    """Those of one layer: `qkv`, whose rows are those of q, k, v and a gate, in that order, and `output`.

    `q_norm` and `k_norm`, where a model has them, norm each head of q and k, or all of a token's together, before the rotation; `sinks`, [num_heads], are
    scores of a token without a value. `kv_scales`, float32 [2, num_kv_heads], are what kept keys and values are multiplied with, where they
    are kept in 8-bit floats.
    """

    def __init__(self, spec: ModelSpec, layer: int, norms: Norms = Norms("input_layernorm")) -> None:  # noqa: B008
        super().__init__(spec, norms)
        mixer = spec.layers[layer].mixer
        assert isinstance(mixer, AttentionSpec)
        self.layer, self.rotation = layer, mixer.rotation
        self.num_heads, self.num_kv_heads, self.head_dim = mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
        self.scale = self.head_dim**-0.5 if mixer.scale is None else mixer.scale
        self.soft_cap = mixer.soft_cap
        self.sinks = nn.Parameter(torch.empty(self.num_heads), requires_grad=False) if mixer.sinks else None
        self.is_gated = mixer.gated
        width = ((2 if mixer.gated else 1) * self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        self.qkv = Linear(spec.hidden_size, width, bias=mixer.qkv_bias)
        self.output = Linear(self.num_heads * self.head_dim, spec.hidden_size, bias=mixer.output_bias)
        self.clip, self.norms_vectors = mixer.clip, mixer.qk_norm == "vector"
        self.kv_scales = (
            None
            if mixer.kept is None
            else nn.Parameter(torch.empty(2, self.num_kv_heads, dtype=torch.float32), requires_grad=False)
        )
        self.q_norm = self.k_norm = None
        if mixer.qk_norm is not None:
            normed = (self.num_heads, self.num_kv_heads) if self.norms_vectors else (1, 1)
            self.q_norm, self.k_norm = (RMSNorm(heads * self.head_dim, spec.norm) for heads in normed)

    def kept_scales(self) -> Tensor | None:
        return self.kv_scales

    def products(self) -> tuple[Product, ...]:
        """The projections to q, k and v, and back."""
        qkv = Product("qkv", self.qkv, self.norm, added=False)
        return qkv, Product("output", self.output, post_norm=self.post_norm)

    def projection_tensors(self) -> dict[str, Tensor]:
        """Those that make q, k and v, as checkpoints of Llama and its relatives name them; here they are rows of one matrix."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        q *= 2 if self.is_gated else 1
        return rows(self.qkv, {"q_proj": q, "k_proj": kv, "v_proj": kv})

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """As checkpoints of Llama and its relatives name them."""
        tensors = self.projection_tensors()
        tensors |= prefixed("o_proj", self.output.checkpoint_tensors())
        for name, norm in (("q_norm", self.q_norm), ("k_norm", self.k_norm)):
            if norm is not None:
                tensors |= prefixed(name, norm.checkpoint_tensors())
        if self.sinks is not None:
            tensors["sinks"] = self.sinks
        return self.norm_tensors() | prefixed("self_attn", tensors)

    def arrange(self) -> None:
        """Put gates behind q, k and v, and the elements of each head of q and k into the order in which kernels turn them."""
        if self.is_gated:
            gates_last(self.qkv, self.num_heads, self.head_dim)
        norms = [each for each in (self.q_norm, self.k_norm) if each is not None]
        turn_heads(self.qkv, norms, self.num_heads + self.num_kv_heads, self.head_dim, self.rotation)
