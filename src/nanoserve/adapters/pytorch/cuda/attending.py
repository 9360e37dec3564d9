"""The mixers of a step on a GPU: which rows, which cache, which kernel. Its steps fulfil what mixers in `layers` ask of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.expansion import Round
from nanoserve.adapters.pytorch.cuda.latents import LatentAttending
from nanoserve.adapters.pytorch.cuda.workspace import Views, Workspace
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.rotary import Rotary
from nanoserve.adapters.pytorch.mixers.attention.part import Attention
from nanoserve.adapters.pytorch.mixers.delta.part import DeltaNet
from nanoserve.adapters.pytorch.mixers.latent.part import LatentAttention
from nanoserve.kernels.delta_rule.launch import delta_rule_chunks, delta_rule_newest, delta_rule_tiles
from nanoserve.kernels.paged import HeadTransform, PagedCache
from nanoserve.kernels.paged_attention.launch import decode_attention, prefill_attention
from nanoserve.kernels.paged_attention.tuning import choose_tile
from nanoserve.kernels.pointwise.launch import norm_qkv_into, sigmoid_mul_into
from nanoserve.kernels.recurrent import DeltaStates
from nanoserve.kernels.rope_and_cache.launch import rope_and_cache
from nanoserve.ports.layer_spec import Rotation
from nanoserve.ports.model_spec import Latent, ModelSpec, Recurrent


def rotation_table(rotary: Rotary, max_positions: int, device: torch.device) -> Tensor:
    """Cosines, then sines, of every position: float32 [max_positions, head_dim]."""
    cos, sin = rotary(torch.arange(max_positions, device=device))
    half = cos.shape[-1] // 2
    return torch.cat((cos[:, 0, :half], sin[:, 0, half:]), dim=-1).contiguous()


@attrs.frozen(eq=False)
class GpuStep:
    """One step, as its mixers see it."""

    attend: Callable[[Attention, Tensor], Tensor]
    attend_to_latents: Callable[[LatentAttention, Tensor, Tensor], Tensor]
    recur: Callable[[DeltaNet, Tensor], Tensor]


class Attending:
    """The mixing of every layer over one cache; makes the steps that attend to it and advance its states.

    `invariant`: decode with the arithmetic of prefill, so that the batch and the chunking leave no trace; states go through
    prompts token by token, as through what is decoded.
    """

    def __init__(
        self,
        spec: ModelSpec,
        arena: Arena,
        space: Workspace,
        kv: KVStore,
        rotations: Mapping[Rotation, Tensor],
        *,
        invariant: bool,
    ) -> None:
        self._arena, self._space, self._rotations = arena, space, rotations
        self._invariant = invariant
        self._latents = LatentAttending(spec, arena, space.latents, kv, rotations, invariant=invariant)
        self._caches: dict[int, PagedCache] = {}
        self._states: dict[int, tuple[DeltaStates, Tensor]] = {}
        for group, table in zip(spec.cache_groups, arena.block_tables, strict=True):
            for layer in () if isinstance(group.kind, Latent) else group.layers:
                first, second = kv.layers[layer]
                if isinstance(group.kind, Recurrent):
                    self._states[layer] = DeltaStates(first, second), table
                else:
                    self._caches[layer] = PagedCache(first, second, table, group.window)

    def decode(self, places: Tensor, *, splits: int, pdl: bool) -> GpuStep:
        """The newest token of each place, whose key and value are written on the way."""
        outs = Views(self._space.inner, len(places))

        def attend(attention: Attention, projected: Tensor) -> Tensor:
            qkv, gate = attention.split(projected)
            _norm_vectors(attention, qkv, pdl=pdl)
            out = outs[attention.num_heads * attention.head_dim]
            self._decode(attention, qkv, out, places, splits=splits, pdl=pdl)
            if attention.is_gated:
                sigmoid_mul_into(out, gate, pdl=pdl)
            return out

        def attend_to_latents(mixer: LatentAttention, queries: Tensor, projected: Tensor) -> Tensor:
            out = outs[mixer.num_heads * mixer.value_dim]
            self._latents.decode(mixer, queries, projected, out, places, splits=splits, pdl=pdl)
            return out

        def recur(net: DeltaNet, projected: Tensor) -> Tensor:
            out = outs[net.heads.inner]
            self._advance(net, projected, out, places, pdl=pdl)
            return out

        return GpuStep(attend, attend_to_latents, recur)

    def mixed(
        self,
        num_chunk_tokens: int,
        spans: Tensor,
        places: Tensor,
        tiles: Tensor,
        *,
        splits: int,
        rounds: Sequence[Round] = (),
    ) -> GpuStep:
        """Chunks' tokens, then the newest token of each place; what no tile names is only written into the cache.

        States go through all that `spans` names, whatever tiles there are. With `rounds`, latents are expanded in them, and
        tiles are those of `kernels.latent_attention`.
        """
        num_tiles, num_places = len(tiles), len(places)
        rows, positions = self._arena.token_rows[:num_chunk_tokens], self._arena.positions[:num_chunk_tokens]
        query = self._space.query[:num_chunk_tokens]
        outs = Views(self._space.inner, num_chunk_tokens + num_places)

        def attend(attention: Attention, projected: Tensor) -> Tensor:
            qkv, gate = attention.split(projected)
            _norm_vectors(attention, qkv, pdl=False)
            cache, transform = self._caches[attention.layer], self._transform(attention)
            out = outs[attention.num_heads * attention.head_dim]
            rope_and_cache(
                qkv[:num_chunk_tokens], query, cache, transform, token_rows=rows, positions=positions
            )
            if num_tiles:
                prefill_attention(query, cache, out[:num_chunk_tokens], tiles=tiles, **attention.scoring)
            if num_places:
                newest = (qkv[num_chunk_tokens:], out[num_chunk_tokens:], places)
                self._decode(attention, *newest, splits=splits, pdl=False)
            if attention.is_gated:
                sigmoid_mul_into(out, gate)
            return out

        def attend_to_latents(mixer: LatentAttention, queries: Tensor, projected: Tensor) -> Tensor:
            out = outs[mixer.num_heads * mixer.value_dim]
            self._latents.mixed(
                mixer, queries, projected, out, places=places, tiles=tiles, rounds=rounds, splits=splits
            )
            return out

        def recur(net: DeltaNet, projected: Tensor) -> Tensor:
            out = outs[net.heads.inner]
            states, tables = self._states[net.layer]
            what = (projected[:num_chunk_tokens], states, net.weights, net.heads, out[:num_chunk_tokens])
            if self._invariant:
                delta_rule_chunks(*what, spans=spans, tables=tables)
            else:
                delta_rule_tiles(*what, spans=spans, tables=tables, space=self._space.delta_tiles)
            if num_places:
                self._advance(net, projected[num_chunk_tokens:], out[num_chunk_tokens:], places, pdl=False)
            return out

        return GpuStep(attend, attend_to_latents, recur)

    def _advance(self, net: DeltaNet, projected: Tensor, out: Tensor, places: Tensor, *, pdl: bool) -> None:
        states, tables = self._states[net.layer]
        delta_rule_newest(
            projected,
            states,
            net.weights,
            net.heads,
            out,
            batch_rows=places,
            lengths=self._arena.lengths,
            tables=tables,
            invariant=self._invariant,
            pdl=pdl,
        )

    def _decode(
        self, attention: Attention, qkv: Tensor, out: Tensor, places: Tensor, *, splits: int, pdl: bool
    ) -> None:
        cache, transform = self._caches[attention.layer], self._transform(attention)
        lengths = self._arena.lengths
        if self._invariant:
            query = self._space.query[: len(places)]
            rope_and_cache(qkv, query, cache, transform, token_rows=places, positions=lengths, newest=True)
            prefill_attention(query, cache, out, tiles=places, lengths=lengths, **attention.scoring)
            return
        decode_attention(
            qkv,
            cache,
            transform,
            out,
            batch_rows=places,
            lengths=lengths,
            **attention.scoring,
            splits=splits,
            scratch=self._space.splits,
            tiling=choose_tile(len(places), attention.head_dim, qkv.dtype, splits),
            pdl=pdl,
        )

    def _transform(self, attention: Attention) -> HeadTransform:
        rotations = self._rotations[attention.rotation]
        if attention.q_norm is None or attention.k_norm is None or attention.norms_vectors:
            return HeadTransform(rotations)
        return HeadTransform(
            rotations, attention.q_norm.weight, attention.k_norm.weight, attention.q_norm.eps
        )


def _norm_vectors(attention: Attention, qkv: Tensor, *, pdl: bool) -> None:
    if (vectors := attention.vectors) is not None:
        norm_qkv_into(qkv, **vectors, pdl=pdl)
