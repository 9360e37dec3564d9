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
from nanoserve.kernels.pointwise import invariant_sigmoid_mul, norm_qkv, sigmoid_mul
from nanoserve.kernels.rope_and_cache import apply_rotation
from nanoserve.ports.layer_spec import AttentionSpec
from nanoserve.ports.model_spec import CacheGroup


@attrs.frozen
class AttentionKind:
    """See `MixerKind`. A block holds keys, then values."""

    spec: AttentionSpec

    def pages(self, block_size: int, dtype: torch.dtype, /) -> list[Page]:
        kept = FLOAT8 if self.spec.kept == "fp8" else dtype
        return [((2, self.spec.num_kv_heads, block_size, self.spec.head_dim), kept)]

    def split(self, divide: Callable[[int, str], int], /) -> AttentionSpec | str:
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
        places = where.places(step.pages[group.layers[0]][0].shape[3])

        def mix(part: Attention, projected: Tensor) -> Tensor:
            keys, values = step.pages[part.layer][0].unbind(1)
            qkv, gates = part.split(projected)
            if (vectors := part.vectors) is not None:
                qkv = norm_qkv(qkv, **vectors)
            heads = qkv.view(qkv.shape[0], -1, part.head_dim)
            qk, value = heads[:, : -part.num_kv_heads], heads[:, -part.num_kv_heads :]
            qk = apply_rotation(_normed(part, qk), *step.rotations[part.rotation])
            query, key = qk[:, : part.num_heads], qk[:, part.num_heads :]
            if part.kv_scales is not None:
                key_scales, value_scales = part.kv_scales
                query, key = _scaled(query, key_scales), narrowed(key, key_scales)
                value = narrowed(value, value_scales)
            keys.transpose(1, 2).index_put_(places, key)
            values.transpose(1, 2).index_put_(places, value)
            attended = attend(query, keys, values, **part.scoring)
            if part.kv_scales is not None:
                attended = _scaled(attended, value_scales)
            attended = attended.flatten(1)
            return gate(attended, gates) if part.is_gated else attended

        return mix

    def _attend(self, group: CacheGroup, where: GroupInputs, step: CpuStep) -> Callable[..., Tensor]:
        rows = (where.block_tables, step.inputs.query_lengths, step.inputs.context_lengths)
        if step.invariant:
            fixed = kernels.plan_invariant_attention(*rows, window=group.window)
            return functools.partial(kernels.invariant_attention, plan=fixed)
        blocks = step.pages[group.layers[0]][0]
        plan = kernels.plan_attention(
            *rows,
            num_kv_heads=self.spec.num_kv_heads,
            block_size=blocks.shape[3],
            block_stride=blocks.stride(0) // blocks.stride(2),
            window=group.window,
            dtype=step.dtype,
        )
        return functools.partial(kernels.paged_attention, plan=plan)


def _scaled(heads: Tensor, scales: Tensor) -> Tensor:
    """Query heads, or their attended values, [T, num_heads, head_dim], times the scale of the KV head that they read."""
    return heads * scales.repeat_interleave(heads.shape[1] // len(scales))[:, None].to(heads.dtype)


def _normed(part: Attention, qk: Tensor) -> Tensor:
    """Queries and keys [T, heads, head_dim], each normed where the model norms heads."""
    if part.q_norm is None or part.k_norm is None or part.norms_vectors:
        return qk
    return torch.cat((part.q_norm(qk[:, : part.num_heads]), part.k_norm(qk[:, part.num_heads :])), dim=1)
