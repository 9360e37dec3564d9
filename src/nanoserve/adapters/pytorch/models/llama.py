"""Llama (Touvron et al. 2023): the page that the other models are variations of.

A decoder-only transformer: tokens become vectors, each layer adds to them what its attention and its feed-forward
network make of them, and the last vectors are compared with one vector per token of the vocabulary.
"""

from __future__ import annotations

from torch import Tensor, nn

from nanoserve.adapters.pytorch.layers.attention import Attention
from nanoserve.adapters.pytorch.layers.checkpoint import prefixed
from nanoserve.adapters.pytorch.layers.embedding import Embedding
from nanoserve.adapters.pytorch.layers.mlp import SwiGLU
from nanoserve.adapters.pytorch.layers.norm import RMSNorm
from nanoserve.adapters.pytorch.layers.step_state import StepState
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.adapters.pytorch.models.decoder import DecoderModel, Observer
from nanoserve.ports.model_spec import ModelSpec


class LlamaLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.attention = Attention(spec, layer)
        self.mlp_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.mlp = SwiGLU(spec)

    def forward(self, x: Tensor, step: StepState) -> Tensor:
        """The residual stream [T, hidden] before and after this layer."""
        attended = self.attention(self.attention_norm(x), step)
        normed, x = self.mlp_norm.after_adding(attended, x)
        fed: Tensor = self.mlp(normed)
        return x + fed

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """This layer's tensors by their names in a checkpoint."""
        return {
            **prefixed("input_layernorm", self.attention_norm.checkpoint_tensors()),
            **prefixed("self_attn", self.attention.checkpoint_tensors()),
            **prefixed("post_attention_layernorm", self.mlp_norm.checkpoint_tensors()),
            **prefixed("mlp", self.mlp.checkpoint_tensors()),
        }


class Llama(DecoderModel):
    """Embedding, layers, norm, head; the head may share the embedding's weight."""

    layers: nn.ModuleList
    head: nn.Module

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.embedding = Embedding(spec.vocab_size, spec.hidden_size)
        self.layers = nn.ModuleList(LlamaLayer(spec, layer) for layer in range(spec.num_layers))
        self.norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.head = Linear(spec.hidden_size, spec.vocab_size)
        if spec.tied_embeddings:
            self.head.weight = self.embedding.weight

    def hidden_states(self, token_ids: Tensor, step: StepState, observe: Observer) -> Tensor:
        """Token ids [T] to hidden states [T, hidden]."""
        x: Tensor = self.embedding(token_ids)
        observe("embeddings", x)
        for index, layer in enumerate(self.layers):
            x = layer(x, step)
            observe(f"layers.{index}", x)
        x = self.norm(x)
        observe("norm", x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [S, hidden] to logits float32 [S, vocab]."""
        scores: Tensor = self.head(hidden)
        return scores.float()

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Every tensor by its name in a checkpoint; a tied head has none of its own."""
        tensors = prefixed("model.embed_tokens", self.embedding.checkpoint_tensors())
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, LlamaLayer)
            tensors |= prefixed(f"model.layers.{index}", layer.checkpoint_tensors())
        tensors |= prefixed("model.norm", self.norm.checkpoint_tensors())
        if not self.spec.tied_embeddings:
            assert isinstance(self.head, Linear)
            tensors |= prefixed("lm_head", self.head.checkpoint_tensors())
        return tensors
