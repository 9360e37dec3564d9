"""Gated delta nets on a GPU: which rows, which states, which kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
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
    """See `GpuMixer`. Invariant states are updated token by token in prompts, as in decoding.

    How many of a place's tokens count is not known before the draw, and a state cannot go back. So a step with drafts leaves it as it is,
    and keeps the projections; `settle` lets those that count pass through it.
    """

    checks: ClassVar = CHECKS
    pads: ClassVar = False
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
        most = facts.decoded if facts.sizes.max_width > 1 else 0
        self._kept = {
            layer: facts.empty(most, each.width) for layer, each in zip(self._layers, heads, strict=True)
        }
        self._unused = facts.empty(most * max(each.inner for each in heads))
        self._spans, self._ends = facts.empty(most, 4, of=torch.int32), facts.empty(most, of=torch.int32)
        self._numbers = torch.arange(most, dtype=torch.int32, device=facts.device)
        self._nets = dict[int, DeltaNet]()

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
            if step.width > 1:
                self._look(net, projected[tokens:], out[tokens:], step)
            else:
                launch.delta_rule_newest(*what, **how)

    def _look(self, net: DeltaNet, projected: Tensor, out: Tensor, step: GpuStep) -> None:
        """Compute all tokens of each place, and leave its state as it is."""
        places, width, spans = step.places, step.width, self._spans[: len(step.places)]
        if net.layer == min(self._layers):  # each row, its first token's index, tokens, first position
            spans[:, 0].copy_(places)
            torch.mul(self._numbers[: len(places)], width, out=spans[:, 1])
            spans[:, 2].fill_(width)
            torch.sub(self._lengths(places), 1, out=spans[:, 3])
        self._nets[net.layer], kept = net, self._kept[net.layer][: len(projected)]
        kept.copy_(projected)
        where: dict[str, Any] = {"spans": spans, "tables": self._arena.block_tables[net.layer]}
        launch.delta_rule_chunks(
            kept, self._states[net.layer], net.weights, net.heads, out, **where, keep=False
        )

    def settle(self, places: Tensor) -> None:
        """See `GpuMixer`: as many tokens pass through a state as its row is longer than before the step."""
        spans = self._spans[: len(places)]
        torch.sub(self._lengths(places), spans[:, 3], out=spans[:, 2])
        spans[:, 2].sub_(1)
        for layer, net in self._nets.items():
            kept, tables = self._kept[layer], self._arena.block_tables[layer]
            unused = self._unused[: len(kept) * net.heads.inner].view(len(kept), -1)
            what = (kept, self._states[layer], net.weights, net.heads, unused)
            launch.delta_rule_chunks(*what, spans=spans, tables=tables)

    def _lengths(self, places: Tensor) -> Tensor:
        return torch.index_select(self._arena.lengths, 0, places, out=self._ends[: len(places)])
