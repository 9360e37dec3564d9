"""Attention: its blocks of keys and values, its heads on each rank, and a step of it on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.mixers.gpu_mixer import GpuMixer
from nanoserve.adapters.pytorch.mixers.kind import Page
from nanoserve.adapters.pytorch.step_inputs import CpuStep, GroupInputs
from nanoserve.kernels import paged_attention as kernels
from nanoserve.kernels.kept import FLOAT8, narrowed
from nanoserve.kernels.kept_rows import KeptRows
from nanoserve.kernels.pointwise import invariant_sigmoid_mul, norm_qkv, sigmoid_mul
from nanoserve.kernels.rope_and_cache import apply_rotation
from nanoserve.ports.layer_spec import AttentionSpec
from nanoserve.ports.model_spec import CacheGroup

KEPT_SHARE = 4
"""Decoding rows' keys and values are kept beside the pool, too, in at most this part of the pool's memory,"""
KEPT_BYTES = 64 * 2**20
"""or in this, where that is more."""


@attrs.frozen
class AttentionKind:
    """See `MixerKind`. A block holds keys, then values."""

    spec: AttentionSpec

    def pages(self, block_size: int, dtype: torch.dtype, /) -> list[Page]:
        kept = FLOAT8 if self.spec.kept == "fp8" else dtype
        return [((2, self.spec.num_kv_heads, block_size, self.spec.head_dim), kept)]

    def split(self, divide: Callable[[int, str], int], _holders: int, /) -> AttentionSpec | str:
        """See `MixerKind`: whole KV heads, with the queries that read them."""
        if self.spec.qk_norm == "vector":
            return "attention that norms the queries of all heads together"
        kv_heads = divide(self.spec.num_kv_heads, "KV heads")
        group = self.spec.num_heads // self.spec.num_kv_heads
        return attrs.evolve(self.spec, num_heads=group * kv_heads, num_kv_heads=kv_heads)

    @staticmethod
    def on_gpu() -> type[GpuMixer]:
        from nanoserve.adapters.pytorch.mixers.attention.gpu import GpuAttention  # noqa: PLC0415 - Triton, for a GPU alone

        return GpuAttention

    def prepare(self, group: CacheGroup, where: GroupInputs, step: CpuStep, /) -> Callable[..., Tensor]:
        attend = self._attend(group, where, step)
        gate = invariant_sigmoid_mul if step.invariant else sigmoid_mul

        def mix(part: Attention, projected: Tensor) -> Tensor:
            (page,) = step.pages[part.layer]
            qkv, gates = part.split(projected) if part.is_gated else (projected, projected)
            if (vectors := part.vectors) is not None:
                qkv = norm_qkv(qkv, **vectors)
            heads = qkv.view(qkv.shape[0], -1, part.head_dim)
            query = heads[:, : part.num_heads]
            new = heads[:, part.num_heads :].view(-1, 2, part.num_kv_heads, part.head_dim)
            if part.q_norm is not None and part.k_norm is not None and not part.norms_vectors:
                query.copy_(part.q_norm(query))
                new[:, 0].copy_(part.k_norm(new[:, 0]))
            apply_rotation(heads[:, : -part.num_kv_heads], *step.rotations[part.rotation])
            if part.kv_scales is not None:
                query, new = _scaled(query, part.kv_scales[0]), narrowed(new, part.kv_scales)
            page.permute(0, 3, 1, 2, 4).index_put_(where.places, new)
            attended = attend(part, query, page, new)
            if part.kv_scales is not None:
                attended = _scaled(attended, part.kv_scales[1])
            attended = attended.flatten(1)
            return gate(attended, gates) if part.is_gated else attended

        return mix

    def _attend(self, group: CacheGroup, where: GroupInputs, step: CpuStep) -> Callable[..., Tensor]:
        """The attention of a step: called with a part, its queries, its page, and the step's own keys and values."""
        rows = (where.block_tables, step.inputs.query_lengths, step.inputs.context_lengths)
        blocks = step.pages[group.layers[0]][0]
        layout = kernels.BlockLayout(
            self.spec.num_kv_heads, blocks.shape[3], blocks.stride(0) // blocks.stride(2)
        )
        place = blocks.data_ptr()  # layers of a model that drafts have the same numbers as those of the other
        kept = step.kept.get(place)
        if kept is None:
            kept = step.kept[place] = KeptRows(layout, step.dtype)
        a_token = len(group.layers) * step.dtype.itemsize * 2 * self.spec.num_kv_heads * self.spec.head_dim
        most = max(len(group.layers) * blocks.nbytes // KEPT_SHARE, KEPT_BYTES) // a_token
        attend: Callable[..., Tensor]

        if step.invariant:
            kept.forget()
            fixed = kernels.plan_invariant_attention(*rows, window=group.window)
            attend = functools.partial(kernels.invariant_attention, plan=fixed)
        elif group.window is None and kept.lay_out(*rows, most_tokens=most):
            return lambda part, query, page, new: kept.attend(part.layer, query, page, new, part.scoring)
        else:
            plan = kernels.plan_attention(*rows, layout, window=group.window, dtype=step.dtype)
            attend = functools.partial(kernels.paged_attention, plan=plan)
        return lambda part, query, page, _: attend(query, *page.unbind(1), scoring=part.scoring)


def _scaled(heads: Tensor, scales: Tensor) -> Tensor:
    """Query heads, or their attended values, [T, num_heads, head_dim], times the scale of the KV head that they read."""
    return heads * scales.repeat_interleave(heads.shape[1] // len(scales))[:, None].to(heads.dtype)
