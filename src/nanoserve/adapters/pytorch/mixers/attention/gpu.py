"""Attention on a GPU: which rows, which cache, which kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from nanoserve.adapters.pytorch.mixers.attention.checks import CHECKS
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.mixers.gpu_mixer import ChunkSpan, GpuFacts, Padded, StepArena, write_tiles
from nanoserve.adapters.pytorch.mixers.gpu_step import GpuStep
from nanoserve.adapters.pytorch.step_inputs import Pages
from nanoserve.kernels.device.launch import SplitScratch, has_wgmma
from nanoserve.kernels.heads import HeadTransform
from nanoserve.kernels.kept import FLOAT8
from nanoserve.kernels.paged import PagedCache
from nanoserve.kernels.paged_attention import tuning
from nanoserve.kernels.paged_attention.launch import decode_attention, prefill_attention
from nanoserve.kernels.pointwise.launch import norm_qkv_into, sigmoid_mul_into
from nanoserve.kernels.rope_and_cache.launch import rope_and_cache
from nanoserve.ports.errors import ModelLoadError
from nanoserve.ports.layer_spec import AttentionSpec, Rotation


class GpuAttention:
    """See `GpuMixer`. Decoding writes keys and values on the way; a chunk's are written before its tiles read them."""

    checks: ClassVar = CHECKS
    pads: ClassVar = True
    settle: ClassVar = None
    ways = 1

    def __init__(self, layers: Mapping[int, AttentionSpec], facts: GpuFacts) -> None:
        """Raise `ModelLoadError` where layers differ in their heads."""
        heads = {(each.num_heads, each.num_kv_heads, each.head_dim) for each in layers.values()}
        if len(heads) > 1:
            raise ModelLoadError("on a GPU all layers with attention must have the same heads")
        ((self._num_heads, self._num_kv_heads, self._head_dim),) = heads
        self._layers, self._facts = layers, facts
        self._widest = max(each.window or facts.sizes.max_model_len for each in layers.values())
        block = tuning.choose_block(self._head_dim, facts.dtype)
        self.tile = tuning.queries_per_tile(self._num_heads, self._num_kv_heads, block)
        self.sections: Mapping[str, tuple[int, ...]] = {"tiles": (facts.most_tiles(self.tile), 4)}

    def choose_splits(self, bucket: int, longest: int, /) -> int:
        head_dim, dtype = self._head_dim, self._facts.dtype
        sizes = bucket, self._num_kv_heads, min(longest, self._widest), self._facts.multiprocessors
        kept = FLOAT8 if any(each.kept for each in self._layers.values()) else dtype
        fits = tuning.fits_copies(head_dim, self._num_heads // self._num_kv_heads) and dtype.itemsize == 2
        splits = tuning.copied_splits(*sizes, head_dim, narrow=kept is FLOAT8)
        if fits and has_wgmma(self._facts.device) and splits:
            return splits
        tile, size = tuning.choose_tile(bucket, head_dim, kept).tokens, tuning.key_bytes(head_dim, dtype)
        return tuning.choose_splits(*sizes, tile, size=size)

    def allocate(self, max_place_splits: int, /) -> None:
        """See `GpuMixer`: rotated queries, and what parts of long rows leave behind."""
        heads, facts = (self._num_heads, self._head_dim), self._facts
        self._query = facts.empty(facts.max_tokens, self._num_heads * self._head_dim)
        self._scratch = SplitScratch.create(max_place_splits, *heads, 1, facts.device)

    def attach(self, arena: StepArena, pages: Pages, rotations: Mapping[Rotation, Tensor], /) -> None:
        self._arena, self._rotations, self._caches = arena, rotations, {}
        for layer, spec in self._layers.items():
            keys, values = pages[layer][0].unbind(1)
            self._caches[layer] = PagedCache(keys, values, arena.block_tables[layer], spec.window)

    def prepare(self, spans: Sequence[ChunkSpan], _way: int | None, padded: Padded | None, /) -> Tensor:
        """See `GpuMixer`: the chunks' tiles, and empty ones, which compute nothing."""
        return write_tiles(self._arena, spans, self.tile, padded)

    def mix(self, part: Attention, out: Tensor, step: GpuStep, /, projected: Tensor) -> None:
        tokens, (qkv, gates) = step.num_tokens, part.split(projected)
        if (vectors := part.vectors) is not None:
            norm_qkv_into(qkv, **vectors, pdl=step.pdl)
        if tokens:
            self._prefill(part, qkv[:tokens], out[:tokens], step)
        if len(step.places):
            self._decode(part, qkv[tokens:], out[tokens:], step)
        if part.is_gated:
            sigmoid_mul_into(out, gates, pdl=step.pdl)

    def _prefill(self, part: Attention, qkv: Tensor, out: Tensor, step: GpuStep) -> None:
        arena, cache, query = self._arena, self._cache(part), self._query[: len(qkv)]
        rows, positions = arena.token_rows[: len(qkv)], arena.positions[: len(qkv)]
        rope_and_cache(qkv, query, cache, self._transform(part), token_rows=rows, positions=positions)
        tiles = step.plans[self] if step.chosen is None else step.chosen
        if len(tiles):
            by_roles = False if step.invariant else None
            prefill_attention(query, cache, out, tiles=tiles, by_roles=by_roles, scoring=part.scoring)

    def _decode(self, part: Attention, qkv: Tensor, out: Tensor, step: GpuStep) -> None:
        cache, transform = self._cache(part), self._transform(part)
        places, lengths, width = step.places, self._arena.lengths, max(step.width, 1)
        limits = self._arena.limits if step.width else None
        how: dict[str, Any] = {"scoring": part.scoring, "lengths": lengths, "width": width}
        if step.invariant:
            query, what = self._query[: len(qkv)], {"token_rows": places, "positions": lengths}
            rope_and_cache(qkv, query, cache, transform, **what, newest=True, limits=limits, width=width)
            prefill_attention(query, cache, out, tiles=places, **how)
            return
        how |= {"splits": step.splits, "scratch": self._scratch, "limits": limits, "pdl": step.pdl}
        decode_attention(qkv, cache, transform, out, batch_rows=places, **how)

    def _cache(self, part: Attention) -> PagedCache:
        return self._caches[part.layer]._replace(scales=part.kv_scales)

    def _transform(self, part: Attention) -> HeadTransform:
        rotations, norms_heads = self._rotations[part.rotation], not part.norms_vectors
        if norms_heads and part.q_norm is not None and part.k_norm is not None:
            return HeadTransform(rotations, part.q_norm.weight, part.k_norm.weight, part.q_norm.eps)
        return HeadTransform(rotations)
