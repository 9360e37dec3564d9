"""The mixers of a model on a GPU together, whatever kinds there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nanoserve.adapters.pytorch.cuda.arena import Arena, HeadArena
from nanoserve.adapters.pytorch.cuda.batches import buckets, widths_of
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.rotary import Rotary
from nanoserve.adapters.pytorch.mixers import KINDS
from nanoserve.adapters.pytorch.mixers.gpu_mixer import ChunkSpan, GpuFacts, GpuMixer, Padded
from nanoserve.ports.layer_spec import Mixer, Rotation
from nanoserve.ports.model_spec import DraftSpec, ModelSpec


class GpuMixers:
    """The mixers of all layers, that of a head that drafts included, and what a step needs of them together.

    Attributes:
        by_layer: the mixer of each layer.
        tile, ways, sections: as of a `GpuMixer`; `pads`: whether all of them do; `settling`: those that settle.
    """

    def __init__(self, spec: ModelSpec, facts: GpuFacts) -> None:
        """Allocate the buffers of each."""
        kinds: dict[type[Mixer], dict[int, Any]] = {}
        for number, layer in enumerate(spec.layers):
            kinds.setdefault(type(layer.mixer), {})[number] = layer.mixer
        self._longest, self._max_width = facts.sizes.max_model_len, facts.sizes.max_width
        self.by_layer: dict[int, GpuMixer] = {}
        for kind, layers in kinds.items():
            self.by_layer.update(dict.fromkeys(layers, KINDS[kind].on_gpu()(layers, facts)))
        self._drafting: GpuMixer | None = None
        if isinstance(spec.draft, DraftSpec):
            own = spec.draft.layer.mixer
            self._drafting = KINDS[type(own)].on_gpu()({spec.num_layers: own}, facts)
            self.by_layer[spec.num_layers] = self._drafting
        self._mixers = tuple(dict.fromkeys(self.by_layer.values()))
        self.tile = min(each.tile for each in self._mixers)
        self.ways = max(each.ways for each in self._mixers)
        self.pads = all(each.pads for each in self._mixers)
        self.settling = [each.settle for each in self._mixers if each.settle is not None]
        self.sections = {
            (HeadArena.PREFIX if each is self._drafting else "") + name: shape
            for each in self._mixers
            for name, shape in each.sections.items()
        }
        most = max(  # a short row may have more splits than the longest one; between powers of two their number only grows
            bucket * max([1, *widths_of(bucket, facts.sizes)]) * self.choose_splits(bucket, min(1 << power, self._longest))
            for bucket in buckets(facts.sizes.max_num_seqs)
            for power in range(self._longest.bit_length() + 1)
        )  # fmt: skip
        for each in self._mixers:
            each.allocate(most)

    def choose_splits(self, bucket: int, longest: int) -> int:
        """As many as any mixer asks for."""
        return max(each.choose_splits(bucket, longest) for each in self._mixers)

    def attach(self, arena: Arena, kv: KVStore, rotaries: Mapping[Rotation, Rotary]) -> None:
        """Compute over this cache from now on."""
        rotations = {each: rotary.table(self._longest + self._max_width) for each, rotary in rotaries.items()}
        for each in self._mixers:
            each.attach(HeadArena(arena) if each is self._drafting else arena, kv.layers, rotations)

    def prepare(
        self, spans: Sequence[ChunkSpan], way: int | None = None, padded: Padded | None = None
    ) -> dict[GpuMixer, Any]:
        """Let each mixer describe a step's chunks in the arena; a `way` is for rehearsals, `padded` for captured steps."""
        return {each: each.prepare(spans, way, padded) for each in self._mixers}
