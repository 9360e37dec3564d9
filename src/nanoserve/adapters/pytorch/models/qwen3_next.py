"""Qwen3-Next (Qwen Team 2025): three layers of four keep a state of constant size, the fourth attends."""

from __future__ import annotations

from nanoserve.adapters.pytorch.layers.experts import make_feed
from nanoserve.adapters.pytorch.layers.part import Part
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.mixers.delta.part import DeltaNet
from nanoserve.adapters.pytorch.models.decoder import DecoderModel
from nanoserve.ports.layer_spec import DeltaSpec


class Qwen3Next(DecoderModel):
    """A gated delta net or gated attention, then a feed."""

    unused = ("mtp.",)
    further_names = (
        "mtp.layers.0",
        "mtp.pre_fc_norm_embedding",
        "mtp.pre_fc_norm_hidden",
        "mtp.fc",
        "mtp.norm",
    )

    def make_layer(self, layer: int) -> tuple[Part, ...]:
        """A mixer of the layer's kind, then its feed."""
        recurs = isinstance(self.spec.layers[layer].mixer, DeltaSpec)
        mixer = DeltaNet(self.spec, layer) if recurs else Attention(self.spec, layer)
        return mixer, make_feed(self.spec, layer)
