"""OLMo 2 (Team OLMo 2024)."""

from __future__ import annotations

from nanoserve.adapters.pytorch.layers.feeds import SwiGLU
from nanoserve.adapters.pytorch.layers.norm import Norms
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.models.decoder import DecoderModel


class Olmo2(DecoderModel):
    """x + norm(attention(x)), then x + norm(swiglu(x)), in every layer; all queries of a token are one vector to their norm."""

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """Attention and a feed, each with a norm behind it and none before."""
        return (
            Attention(self.spec, layer, Norms(None, "post_attention_layernorm")),
            SwiGLU(self.spec, layer, Norms(None, "post_feedforward_layernorm")),
        )
