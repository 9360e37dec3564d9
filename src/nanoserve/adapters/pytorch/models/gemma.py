"""Gemma 2 (Gemma Team 2024) and Gemma 3 (Gemma Team 2025), their text."""

from __future__ import annotations

from torch import Tensor

from nanoserve.adapters.pytorch.layers.checkpoint import prefixed
from nanoserve.adapters.pytorch.layers.feeds import SwiGLU
from nanoserve.adapters.pytorch.layers.norm import Norms
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.models.decoder import DecoderModel


class Gemma(DecoderModel):
    """x + norm(attention(norm(x))), then x + norm(feed(norm(x))), in every layer.

    The rest are numbers of the spec: windows, soft caps in Gemma 2, norms of heads and a rotation per kind of layer in Gemma 3,
    embeddings multiplied by the root of the hidden size, and norms whose weights are stored less one.
    """

    rounds_embedding_scale = True

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """Attention and a feed, each between two norms."""
        return (
            Attention(self.spec, layer, Norms("input_layernorm", "post_attention_layernorm")),
            SwiGLU(self.spec, layer, Norms("pre_feedforward_layernorm", "post_feedforward_layernorm")),
        )


class GemmaBesideVision(Gemma):
    """The text half of a Gemma 3 that also sees: its tensors have names of their own, those of the other half are left out."""

    unused = ("vision_tower.", "multi_modal_projector.")

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Every tensor of the text half."""
        return prefixed("language_model", super().checkpoint_tensors())
