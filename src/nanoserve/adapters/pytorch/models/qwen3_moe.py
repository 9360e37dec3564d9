"""Qwen3-MoE (Yang et al. 2025), and the families with experts that share its layers."""

from __future__ import annotations

from nanoserve.adapters.pytorch.layers.experts import make_feed
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.models.decoder import DecoderModel


class Qwen3Moe(DecoderModel):
    """Qwen3 with a mixture of experts in the layers whose `LayerSpec.feed` is one."""

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """Attention over the tokens so far, then experts or a dense feed."""
        return Attention(self.spec, layer), make_feed(self.spec, layer)
