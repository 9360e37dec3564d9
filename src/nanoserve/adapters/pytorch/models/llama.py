"""Llama (Touvron et al. 2023): the page that the other models are variations of."""

from __future__ import annotations

from nanoserve.adapters.pytorch.layers.feeds import SwiGLU
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.models.decoder import DecoderModel


class Llama(DecoderModel):
    """x + attention(norm(x)), then x + swiglu(norm(x)), in every layer."""

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """Attention over the tokens so far, then a dense feed."""
        return Attention(self.spec, layer), SwiGLU(self.spec, layer)
