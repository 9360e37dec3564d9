"""Latent attention: its blocks of latents, its heads on each rank, and a step of it on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.mixers.gpu_mixer import GpuMixer
from nanoserve.adapters.pytorch.mixers.kind import Page
from nanoserve.adapters.pytorch.mixers.latent.part import LatentAttention
from nanoserve.adapters.pytorch.parallel.communicator import Communicator
from nanoserve.adapters.pytorch.step_inputs import CpuStep, GroupInputs
from nanoserve.kernels import latent_attention as kernels
from nanoserve.kernels.rope_and_cache import apply_rotation
from nanoserve.ports.layer_spec import LatentSpec
from nanoserve.ports.model_spec import CacheGroup


@attrs.frozen
class LatentKind:
    """See `MixerKind`. A block holds entries: a latent, and behind it the rotated key of all heads; or every so many tokens' if they are dealt out."""

    spec: LatentSpec

    def pages(self, block_size: int, dtype: torch.dtype, /) -> list[Page]:
        return [((block_size // self.spec.holders, self.spec.latent_dim + self.spec.rope_dim), dtype)]

    def split(self, divide: Callable[[int, str], int], holders: int, /) -> LatentSpec:
        """See `MixerKind`: heads are split; all heads read the same latents, which are dealt out if their numbers can be divided."""
        own = attrs.evolve(self.spec, num_heads=divide(self.spec.num_heads, "heads"))
        return attrs.evolve(own, holders=holders) if own.cache_elements % holders == 0 else own

    @staticmethod
    def on_gpu() -> type[GpuMixer]:
        from nanoserve.adapters.pytorch.mixers.latent.gpu import GpuLatents  # noqa: PLC0415 - Triton, for a GPU alone

        return GpuLatents

    def prepare(self, group: CacheGroup, where: GroupInputs, step: CpuStep, /) -> Callable[..., Tensor]:
        rows = (where.block_tables, step.inputs.query_lengths, step.inputs.context_lengths)
        holders = self.spec.holders
        block_size = step.pages[group.layers[0]][0].shape[1] * holders
        attend: Callable[..., Tensor]
        if step.invariant:
            by_head = kernels.fixed_head_linear
            attend = functools.partial(kernels.invariant_latent_attention, plan=kernels.plan_invariant(*rows))
        else:
            by_head = kernels.head_linear
            plan = kernels.plan_latent_attention(*rows, block_size=block_size)
            attend = functools.partial(kernels.latent_attention, plan=plan)
            if holders > 1:
                attend = functools.partial(_attend_together, plan=plan, ranks=step.ranks)
        own: Any = slice(None)
        places = where.places
        if holders > 1:
            own = places[1] % holders == step.ranks.rank
            places = places[0][own], places[1][own] // holders

        def mix(part: LatentAttention, queries: Tensor, projected: Tensor) -> Tensor:
            (entries,), latent_dim = step.pages[part.layer], part.latent_dim
            turns = step.rotations[part.rotation]
            key = apply_rotation(projected[:, None, latent_dim:], *turns)[:, 0]
            latent = part.latent_norm(projected[:, :latent_dim])
            entries.index_put_(places, torch.cat((latent, key), dim=1)[own])
            heads = queries.view(len(queries), part.num_heads, -1)
            absorbed = by_head(heads[..., : part.nope_dim], part.up_keys)
            query = torch.cat((absorbed, apply_rotation(heads[..., part.nope_dim :], *turns)), dim=2)
            attended = attend(query, entries, latent_dim=latent_dim, scale=part.scale)
            return by_head(attended, part.up_values).flatten(1)

        return mix


def _attend_together(
    query: Tensor, entries: Tensor, plan: Any, *, latent_dim: int, scale: float, ranks: Communicator
) -> Tensor:
    """As `kernels.latent_attention`, over entries that ranks have dealt out: each attends with all heads to its own, and merges for its heads."""
    tokens, heads, _ = query.shape
    queries = ranks.all_gather(query.flatten(1)).view(tokens, ranks.size * heads, -1)
    own = slice(ranks.rank, None, ranks.size)
    part = kernels.attend_to_part(queries, entries, plan, latent_dim=latent_dim, scale=scale, part=own)
    parts = ranks.all_gather(part.flatten(1)).view(tokens, ranks.size, ranks.size, heads, -1)
    return kernels.merge_parts(parts[:, :, ranks.rank].transpose(0, 1)).to(query.dtype)
