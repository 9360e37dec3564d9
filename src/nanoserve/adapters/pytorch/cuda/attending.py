"""Attention of a step on a GPU: which rows, which cache, which kernel. Its steps fulfil `layers.attention.Attends`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.workspace import Views, Workspace
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.attention import Attention
from nanoserve.adapters.pytorch.layers.rotary import Rotary
from nanoserve.kernels.decode_attention.launch import decode_attention
from nanoserve.kernels.decode_attention.tuning import choose_tile
from nanoserve.kernels.prefill_attention.launch import prefill_attention, prefill_attention_newest
from nanoserve.kernels.rope_and_cache.launch import rope_and_cache, rope_and_cache_newest
from nanoserve.ports.model_spec import ModelSpec


@attrs.frozen(eq=False)
class LayerCache:
    """One layer's keys and values, the block table of its cache group, and how far back its tokens see."""

    keys: Tensor
    values: Tensor
    table: Tensor
    window: int | None


def rotation_table(rotary: Rotary, max_positions: int, device: torch.device) -> Tensor:
    """Cosines, then sines, of every position: float32 [max_positions, head_dim]."""
    cos, sin = rotary(torch.arange(max_positions, device=device))
    half = cos.shape[-1] // 2
    return torch.cat((cos[:, 0, :half], sin[:, 0, half:]), dim=-1).contiguous()


@attrs.frozen(eq=False)
class Step:
    """One step, as its mixers see it."""

    attend: Callable[[Attention, Tensor], Tensor]


class Attending:
    """Attention of every layer over one cache; makes the steps that attend to it."""

    def __init__(
        self, spec: ModelSpec, arena: Arena, space: Workspace, kv: KVStore, rotations: Tensor
    ) -> None:
        self._arena, self._space, self._rotations = arena, space, rotations
        self._layers: dict[int, LayerCache] = {
            layer: LayerCache(kv.keys[layer], kv.values[layer], arena.block_tables[number], group.window)
            for number, group in enumerate(spec.cache_groups)
            for layer in group.layers
        }

    def decode(self, places: Tensor, *, splits: int, pdl: bool) -> Step:
        """The newest token of each place, whose key and value are written on the way."""
        outs = Views(self._space.inner, len(places))

        def attend(attention: Attention, qkv: Tensor) -> Tensor:
            out = outs[attention.num_heads * attention.head_dim]
            self._decode(attention, qkv, out, places, splits=splits, pdl=pdl)
            return out

        return Step(attend)

    def invariant_decode(self, places: Tensor) -> Step:
        """As `decode`, with the arithmetic of prefill, so that the batch and the chunking leave no trace."""
        outs = Views(self._space.inner, len(places))

        def attend(attention: Attention, qkv: Tensor) -> Tensor:
            out = outs[attention.num_heads * attention.head_dim]
            self._invariant_decode(attention, qkv, out, places)
            return out

        return Step(attend)

    def mixed(
        self, num_chunk_tokens: int, places: Tensor, tiles: Tensor, *, splits: int, invariant: bool
    ) -> Step:
        """Chunks' tokens, then the newest token of each place; what no tile names is only written into the cache."""
        arena, num_tiles, num_places = self._arena, len(tiles), len(places)
        rows, positions = arena.token_rows[:num_chunk_tokens], arena.positions[:num_chunk_tokens]
        query = self._space.query[:num_chunk_tokens]
        outs = Views(self._space.inner, num_chunk_tokens + num_places)

        def attend(attention: Attention, qkv: Tensor) -> Tensor:
            layer, out = self._layers[attention.layer], outs[attention.num_heads * attention.head_dim]
            rope_and_cache(
                qkv[:num_chunk_tokens],
                query,
                layer.keys,
                layer.values,
                token_rows=rows,
                positions=positions,
                block_tables=layer.table,
                rotations=self._rotations,
                **_norms(attention),
            )
            if num_tiles:
                prefill_attention(
                    query,
                    layer.keys,
                    layer.values,
                    out[:num_chunk_tokens],
                    tiles=tiles,
                    block_tables=layer.table,
                    scale=attention.scale,
                    window=layer.window,
                )
            if num_places:
                newest = (qkv[num_chunk_tokens:], out[num_chunk_tokens:], places)
                if invariant:
                    self._invariant_decode(attention, *newest)
                else:
                    self._decode(attention, *newest, splits=splits, pdl=False)
            return out

        return Step(attend)

    def _decode(
        self, attention: Attention, qkv: Tensor, out: Tensor, places: Tensor, *, splits: int, pdl: bool
    ) -> None:
        layer = self._layers[attention.layer]
        tiling = choose_tile(len(places), attention.head_dim, qkv.dtype, splits)
        decode_attention(
            qkv,
            layer.keys,
            layer.values,
            out,
            batch_rows=places,
            lengths=self._arena.lengths,
            block_tables=layer.table,
            rotations=self._rotations,
            scale=attention.scale,
            window=layer.window,
            splits=splits,
            scratch=self._space.splits,
            early=tiling.early,
            tiling=tiling,
            pdl=pdl,
            **_norms(attention),
        )

    def _invariant_decode(self, attention: Attention, qkv: Tensor, out: Tensor, places: Tensor) -> None:
        layer, query = self._layers[attention.layer], self._space.query[: len(places)]
        where: dict[str, Any] = {
            "batch_rows": places,
            "lengths": self._arena.lengths,
            "block_tables": layer.table,
        }
        rope_and_cache_newest(
            qkv,
            query,
            layer.keys,
            layer.values,
            rotations=self._rotations,
            **where,
            **_norms(attention),
        )
        prefill_attention_newest(
            query,
            layer.keys,
            layer.values,
            out,
            scale=attention.scale,
            window=layer.window,
            **where,
        )


def _norms(attention: Attention) -> dict[str, Any]:
    """The norms of q's and k's heads, as kernels take them."""
    if attention.q_norm is None or attention.k_norm is None:
        return {}
    weights = {"q_norm": attention.q_norm.weight, "k_norm": attention.k_norm.weight}
    return {**weights, "eps": attention.q_norm.eps}
