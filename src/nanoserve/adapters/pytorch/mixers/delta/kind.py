"""Gated delta nets: their states, their heads on each rank, and a step of them on a CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.mixers.delta.part import DeltaNet
from nanoserve.adapters.pytorch.mixers.gpu_mixer import GpuMixer
from nanoserve.adapters.pytorch.mixers.kind import Page
from nanoserve.adapters.pytorch.step_inputs import CpuStep, GroupInputs
from nanoserve.kernels.delta_rule import delta_rule, invariant_delta_rule
from nanoserve.kernels.recurrent import DeltaStates
from nanoserve.ports.layer_spec import DeltaSpec
from nanoserve.ports.model_spec import CacheGroup


@attrs.frozen
class DeltaKind:
    """See `MixerKind`. A page is the `DeltaStates` of a row."""

    spec: DeltaSpec

    def pages(self, _block_size: int, _dtype: torch.dtype, /) -> list[Page]:
        """See `MixerKind`: float32 whatever the weights are."""
        sums = self.spec.num_value_heads, self.spec.key_dim, self.spec.value_dim
        return [(sums, torch.float32), ((self.spec.taps, self.spec.channels), torch.float32)]

    def split(self, divide: Callable[[int, str], int], _holders: int, /) -> DeltaSpec:
        """See `MixerKind`: key heads, with the value heads that read them."""
        key_heads = divide(self.spec.num_key_heads, "key heads")
        group = self.spec.num_value_heads // self.spec.num_key_heads
        return attrs.evolve(self.spec, num_key_heads=key_heads, num_value_heads=group * key_heads)

    @staticmethod
    def on_gpu() -> type[GpuMixer]:
        from nanoserve.adapters.pytorch.mixers.delta.gpu import GpuDelta  # noqa: PLC0415 - Triton, for a GPU alone

        return GpuDelta

    def prepare(self, _group: CacheGroup, where: GroupInputs, step: CpuStep, /) -> Callable[..., Tensor]:
        """See `MixerKind`; the first column of the block tables is each row's live state."""
        rule, inputs = invariant_delta_rule if step.invariant else delta_rule, step.inputs
        lengths, contexts = inputs.query_lengths, inputs.context_lengths
        starts = tuple(context - length for context, length in zip(contexts, lengths, strict=True))
        spans = _Spans(where.block_tables[:, 0], starts, lengths)

        def mix(net: DeltaNet, projected: Tensor) -> Tensor:
            states = DeltaStates(*step.pages[net.layer])

            def run(tokens: Tensor, spans: _Spans) -> Tensor:
                return rule(tokens, states, net.weights, net.heads, **spans._asdict())

            if inputs.drafted is not None:
                inputs.drafted.layers.append(
                    _going_back(run, projected, states, spans, inputs.drafted.places)
                )
            return run(projected, spans)

        return mix


class _Spans(NamedTuple):
    """The rows of a step: the slots of their states [B], and their tokens there."""

    slots: Tensor
    starts: Sequence[int]
    lengths: Sequence[int]


def _going_back(
    run: Callable[[Tensor, _Spans], Tensor],
    projected: Tensor,
    states: DeltaStates,
    spans: _Spans,
    places: Sequence[int],
) -> Callable[[Sequence[int]], None]:
    """The function that takes the states of rows at these places back, if not all of their tokens count: those that do pass through the states before anew."""
    before = DeltaStates(*(each[spans.slots[list(places)]] for each in states))
    firsts = [0, *itertools.accumulate(spans.lengths)]

    def go_back(counts: Sequence[int]) -> None:
        short = [at for at, place in enumerate(places) if counts[at] < spans.lengths[place]]
        slots = spans.slots[[places[at] for at in short]]
        for state, kept in zip(states, before, strict=True):
            state[slots] = kept[short]
        again = [(places[at], counts[at]) for at in short if counts[at]]
        if again:
            tokens = [firsts[place] + ahead for place, count in again for ahead in range(count)]
            chosen, lengths = zip(*again, strict=True)
            run(
                projected[tokens],
                _Spans(spans.slots[list(chosen)], [spans.starts[each] for each in chosen], lengths),
            )

    return go_back
