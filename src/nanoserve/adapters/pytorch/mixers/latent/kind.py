"""Latent attention: its blocks of latents, its heads on each rank, and a step of it on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.mixers.gpu_mixer import GpuMixer
from nanoserve.adapters.pytorch.mixers.kind import Page
from nanoserve.adapters.pytorch.mixers.latent.part import LatentAttention
from nanoserve.adapters.pytorch.step_inputs import CpuStep, GroupInputs
from nanoserve.kernels import latent_attention as kernels
from nanoserve.kernels.rope_and_cache import apply_rotation
from nanoserve.ports.layer_spec import LatentSpec
from nanoserve.ports.model_spec import CacheGroup


@attrs.frozen
class LatentKind:
    """See `MixerKind`. A block holds entries: a latent, and behind it the rotated key of all heads."""

    spec: LatentSpec

    def pages(self, block_size: int, dtype: torch.dtype, /) -> list[Page]:
        return [((block_size, self.spec.cache_elements), dtype)]

    def split(self, divide: Callable[[int, str], int], /) -> LatentSpec:
        """See `MixerKind`: heads are split; all heads read the same latents, so every rank keeps them."""
        return attrs.evolve(self.spec, num_heads=divide(self.spec.num_heads, "heads"))

    @staticmethod
    def on_gpu() -> type[GpuMixer]:
        from nanoserve.adapters.pytorch.mixers.latent.gpu import GpuLatents  # noqa: PLC0415 - Triton, for a GPU alone

        return GpuLatents

    def prepare(self, group: CacheGroup, where: GroupInputs, step: CpuStep, /) -> Callable[..., Tensor]:
        rows = (where.block_tables, step.inputs.query_lengths, step.inputs.context_lengths)
        block_size = step.pages[group.layers[0]][0].shape[1]
        attend: Callable[..., Tensor]
        if step.invariant:
            by_head = kernels.fixed_head_linear
            attend = functools.partial(kernels.invariant_latent_attention, plan=kernels.plan_invariant(*rows))
        else:
            by_head = kernels.head_linear
            plan = kernels.plan_latent_attention(*rows, block_size=block_size)
            attend = functools.partial(kernels.latent_attention, plan=plan)
        places = where.places(block_size)

        def mix(part: LatentAttention, queries: Tensor, projected: Tensor) -> Tensor:
            (entries,), latent_dim = step.pages[part.layer], part.latent_dim
            turns = step.rotations[part.rotation]
            key = apply_rotation(projected[:, None, latent_dim:], *turns)[:, 0]
            latent = part.latent_norm(projected[:, :latent_dim])
            entries.index_put_(places, torch.cat((latent, key), dim=1))
            heads = queries.view(len(queries), part.num_heads, -1)
            absorbed = by_head(heads[..., : part.nope_dim], part.up_keys)
            query = torch.cat((absorbed, apply_rotation(heads[..., part.nope_dim :], *turns)), dim=2)
            attended = attend(query, entries, latent_dim=latent_dim, scale=part.scale)
            return by_head(attended, part.up_values).flatten(1)

        return mix
