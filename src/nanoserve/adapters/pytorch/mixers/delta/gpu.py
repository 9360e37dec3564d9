"""Gated delta nets on a GPU: which rows, which states, which kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from nanoserve.adapters.pytorch.mixers.delta.checks import CHECKS
from nanoserve.adapters.pytorch.mixers.delta.part import DeltaNet, heads_of
from nanoserve.adapters.pytorch.mixers.gpu_mixer import ChunkSpan, GpuFacts, Padded, StepArena
from nanoserve.adapters.pytorch.mixers.gpu_step import GpuStep
from nanoserve.adapters.pytorch.step_inputs import Pages
from nanoserve.kernels.delta_rule import launch
from nanoserve.kernels.delta_rule.tuning import TILE
from nanoserve.kernels.recurrent import DeltaStates
from nanoserve.ports.layer_spec import DeltaSpec, Rotation


class GpuDelta:
    """See `GpuMixer`. Invariant states are updated token by token in prompts, as in decoding."""

    checks: ClassVar = CHECKS
    pads: ClassVar = False
    widens: ClassVar = False
    tile, ways = TILE, 1
    sections: Mapping[str, tuple[int, ...]] = {}

    def __init__(self, layers: Mapping[int, DeltaSpec], facts: GpuFacts) -> None:
        self._layers, self._facts = layers, facts

    def choose_splits(self, _bucket: int, _longest: int, /) -> int:
        """See `GpuMixer`: a state is not cut."""
        return 1

    def allocate(self, _max_place_splits: int, /) -> None:
        """See `GpuMixer`: the buffers of chunks in tiles."""
        heads, facts = [heads_of(each) for each in self._layers.values()], self._facts
        self._space = launch.TileSpace.create(facts.max_tokens, heads, dtype=facts.dtype, device=facts.device)

    def attach(self, arena: StepArena, pages: Pages, _rotations: Mapping[Rotation, Tensor], /) -> None:
        self._arena = arena
        self._states = {layer: DeltaStates(*pages[layer]) for layer in self._layers}

    def prepare(self, spans: Sequence[ChunkSpan], _way: int | None, _padded: Padded | None, /) -> Tensor:
        """See `GpuMixer`: the chunks, which the arena has."""
        return self._arena.spans[: len(spans)]

    def mix(self, net: DeltaNet, out: Tensor, step: GpuStep, /, projected: Tensor) -> None:
        """See `GpuMixer`; a state goes through all of a chunk, whichever tokens are chosen."""
        tokens, states, tables = step.num_tokens, self._states[net.layer], self._arena.block_tables[net.layer]
        weights, heads, invariant = net.weights, net.heads, step.invariant
        if tokens:
            what = (projected[:tokens], states, weights, heads, out[:tokens])
            where = {"spans": step.plans[self], "tables": tables}
            if invariant:
                launch.delta_rule_chunks(*what, **where)
            else:
                launch.delta_rule_tiles(*what, **where, space=self._space)
        if len(step.places):
            what = (projected[tokens:], states, weights, heads, out[tokens:])
            where = {"batch_rows": step.places, "lengths": self._arena.lengths, "tables": tables}
            how: dict[str, Any] = {"invariant": invariant, "pdl": step.pdl, **where}
            launch.delta_rule_newest(*what, **how)
