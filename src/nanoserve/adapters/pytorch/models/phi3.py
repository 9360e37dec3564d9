"""Phi-3 (Abdin et al. 2024) and its successors."""

from __future__ import annotations

from torch import Tensor

from nanoserve.adapters.pytorch.layers.checkpoint import prefixed
from nanoserve.adapters.pytorch.layers.feeds import SwiGLU
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.models.decoder import DecoderModel


class FusedAttention(Attention):
    """Attention whose checkpoints hold q, k and v as one matrix, like this engine."""

    def projection_tensors(self) -> dict[str, Tensor]:
        """The tensors of the one matrix that the checkpoint stores."""
        return prefixed("qkv_proj", self.qkv.checkpoint_tensors())

    def sections(self) -> dict[str, tuple[int, ...]]:
        """Those of q, k and v."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return dict.fromkeys(prefixed("self_attn", self.projection_tensors()), (q, kv, kv))


class FusedSwiGLU(SwiGLU):
    """A feed whose checkpoints hold gate and up as one matrix, like this engine."""

    def projection_tensors(self) -> dict[str, Tensor]:
        """The tensors of the one matrix that the checkpoint stores."""
        return prefixed("gate_up_proj", self.up.checkpoint_tensors())

    def sections(self) -> dict[str, tuple[int, ...]]:
        """Those of gate and up."""
        return dict.fromkeys(prefixed("mlp", self.projection_tensors()), (self.size, self.size))


class Phi3(DecoderModel):
    """Llama with matrices of other names, a window and, in the small Phi-4, heads that turn in part."""

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """Attention over the tokens so far, then a dense feed."""
        return FusedAttention(self.spec, layer), FusedSwiGLU(self.spec, layer)
