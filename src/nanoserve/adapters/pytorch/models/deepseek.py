"""DeepSeek-V2 and V3 (DeepSeek-AI 2024), which Moonlight and Kimi-K2 share."""

from __future__ import annotations

from nanoserve.adapters.pytorch.layers.latent_attention import LatentAttention
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.layers.swiglu import SwiGLU
from nanoserve.adapters.pytorch.models.decoder import DecoderModel
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import DenseSpec


class DeepSeek(DecoderModel):
    """Llama with latent attention, and with experts from some layer on."""

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """Attention over the tokens so far, then the feed."""
        if not isinstance(self.spec.layers[layer].feed, DenseSpec):
            raise ModelLoadError(f"layer {layer} has experts, which no page computes yet")
        return LatentAttention(self.spec, layer), SwiGLU(self.spec, layer)
