"""Mixers, which let tokens read one another: a folder for each kind, and the table of all kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nanoserve.adapters.pytorch.mixers.attention.kind import AttentionKind
from nanoserve.adapters.pytorch.mixers.bidirectional.kind import BidirectionalKind
from nanoserve.adapters.pytorch.mixers.delta.kind import DeltaKind
from nanoserve.adapters.pytorch.mixers.kind import MixerKind
from nanoserve.adapters.pytorch.mixers.latent.kind import LatentKind
from nanoserve.ports.layer_spec import AttentionSpec, BidirectionalSpec, DeltaSpec, LatentSpec, Mixer

KINDS: Final[Mapping[type[Mixer], type[MixerKind]]] = {
    AttentionSpec: AttentionKind,
    BidirectionalSpec: BidirectionalKind,
    LatentSpec: LatentKind,
    DeltaSpec: DeltaKind,
}


def kind_of(mixer: Mixer) -> MixerKind:
    """The kind of a mixer, with its dimensions."""
    return KINDS[type(mixer)](mixer)
