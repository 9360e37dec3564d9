"""DeepSeek-V2 and V3 (DeepSeek-AI 2024), which Moonlight and Kimi-K2 share, and GLM-4.5 (Z.ai 2025), which has their experts."""

from __future__ import annotations

from nanoserve.adapters.pytorch.layers.experts import make_feed
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.mixers.latent.part import LatentAttention
from nanoserve.adapters.pytorch.models.decoder import DecoderModel
from nanoserve.adapters.pytorch.parallel.communicator import ALONE, Communicator
from nanoserve.ports.model_spec import ModelSpec


class DeepSeek(DecoderModel):
    """Llama with latent attention, and with experts from some layer on."""

    def __init__(self, spec: ModelSpec, ranks: Communicator = ALONE) -> None:
        super().__init__(spec, ranks)
        first = spec.num_layers
        self.unused = tuple(f"model.layers.{first + layer}." for layer in range(spec.further_layers))

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """Attention over the tokens so far, then the feed."""
        return LatentAttention(self.spec, layer), make_feed(self.spec, layer)


class Glm4Moe(DeepSeek):
    """DeepSeek's feeds behind the attention of Llama, which turns a part of each head and may norm q and k."""

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        return Attention(self.spec, layer), make_feed(self.spec, layer)
