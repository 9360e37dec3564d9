"""Gated delta nets: their states, their heads on each rank, and a step of them on a CPU."""

from __future__ import annotations

from collections.abc import Callable

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

    def split(self, divide: Callable[[int, str], int], /) -> DeltaSpec:
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
        slots = where.block_tables[:, 0]

        def mix(net: DeltaNet, projected: Tensor) -> Tensor:
            states = DeltaStates(*step.pages[net.layer])
            return rule(
                projected, states, net.weights, net.heads, slots=slots, starts=starts, lengths=lengths
            )

        return mix
