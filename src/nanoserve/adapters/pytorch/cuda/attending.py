"""How each layer attends in a step: which rows, which cache, which kernel."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.workspace import Workspace
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.rotary import Rotary
from nanoserve.adapters.pytorch.models.llama import Llama, LlamaLayer
from nanoserve.kernels.decode_attention.launch import decode_attention
from nanoserve.kernels.decode_attention.tuning import choose_tile
from nanoserve.kernels.prefill_attention.launch import prefill_attention, prefill_attention_newest
from nanoserve.kernels.rope_and_cache.launch import rope_and_cache, rope_and_cache_newest

Attend = Callable[[int, Tensor, Tensor], None]
"""Layer, projections [T, ...] in, attended values [T, num_heads head_dim] out."""


@attrs.frozen(eq=False)
class LayerCache:
    """What attention in one layer needs besides the step: its cache, its table, its norms."""

    keys: Tensor
    values: Tensor
    table: Tensor
    window: int | None
    q_norm: Tensor | None
    k_norm: Tensor | None


def rotation_table(rotary: Rotary, max_positions: int, device: torch.device) -> Tensor:
    """Cosines, then sines, of every position: float32 [max_positions, head_dim]."""
    cos, sin = rotary(torch.arange(max_positions, device=device))
    half = cos.shape[-1] // 2
    return torch.cat((cos[:, 0, :half], sin[:, 0, half:]), dim=-1).contiguous()


class Attending:
    """Attention of every layer over one cache."""

    def __init__(self, model: Llama, arena: Arena, space: Workspace, kv: KVStore, rotations: Tensor) -> None:
        spec = model.spec
        self._arena = arena
        self._space = space
        self._rotations = rotations
        self._head_dim = spec.head_dim
        self._scale = spec.head_dim**-0.5
        self._eps = spec.norm_eps
        self._layers: list[LayerCache] = [_no_cache()] * spec.num_layers
        for number, group in enumerate(spec.cache_groups):
            for index in group.layers:
                layer = model.layers[index]
                assert isinstance(layer, LlamaLayer)
                norms = [
                    None if norm is None else norm.weight
                    for norm in (layer.attention.q_norm, layer.attention.k_norm)
                ]
                table = arena.block_tables[number]
                self._layers[index] = LayerCache(
                    kv.keys[index], kv.values[index], table, group.window, norms[0], norms[1]
                )

    def decode(self, places: Tensor, *, splits: int, pdl: bool) -> Attend:
        """The newest token of each place, whose key and value are written on the way."""
        tiling = choose_tile(len(places), self._head_dim, self._space.qkv.dtype, splits)

        def attend(index: int, qkv: Tensor, out: Tensor) -> None:
            layer = self._layers[index]
            decode_attention(
                qkv,
                layer.keys,
                layer.values,
                out,
                batch_rows=places,
                lengths=self._arena.lengths,
                block_tables=layer.table,
                rotations=self._rotations,
                scale=self._scale,
                q_norm=layer.q_norm,
                k_norm=layer.k_norm,
                eps=self._eps,
                window=layer.window,
                splits=splits,
                scratch=self._space.attention,
                early=tiling.early,
                tiling=tiling,
                pdl=pdl,
            )

        return attend

    def mixed(
        self, num_chunk_tokens: int, places: Tensor, tiles: Tensor, *, splits: int, invariant: bool
    ) -> Attend:
        """Chunks' tokens, then the newest token of each place; what no tile names is only written into the cache."""
        arena = self._arena
        newest = self.invariant_decode(places) if invariant else self.decode(places, splits=splits, pdl=False)
        rows, positions = arena.token_rows[:num_chunk_tokens], arena.positions[:num_chunk_tokens]

        def attend(index: int, qkv: Tensor, out: Tensor) -> None:
            layer, query = self._layers[index], self._space.query[:num_chunk_tokens]
            rope_and_cache(
                qkv[:num_chunk_tokens],
                query,
                layer.keys,
                layer.values,
                token_rows=rows,
                positions=positions,
                block_tables=layer.table,
                rotations=self._rotations,
                q_norm=layer.q_norm,
                k_norm=layer.k_norm,
                eps=self._eps,
            )
            if len(tiles):
                prefill_attention(
                    query,
                    layer.keys,
                    layer.values,
                    out[:num_chunk_tokens],
                    tiles=tiles,
                    block_tables=layer.table,
                    scale=self._scale,
                    window=layer.window,
                )
            if len(places):
                newest(index, qkv[num_chunk_tokens:], out[num_chunk_tokens:])

        return attend

    def invariant_decode(self, places: Tensor) -> Attend:
        """As `decode`, with the arithmetic of prefill, so that the batch and the chunking leave no trace."""
        lengths = self._arena.lengths

        def attend(index: int, qkv: Tensor, out: Tensor) -> None:
            layer, query = self._layers[index], self._space.query[: len(places)]
            rope_and_cache_newest(
                qkv,
                query,
                layer.keys,
                layer.values,
                batch_rows=places,
                lengths=lengths,
                block_tables=layer.table,
                rotations=self._rotations,
                q_norm=layer.q_norm,
                k_norm=layer.k_norm,
                eps=self._eps,
            )
            prefill_attention_newest(
                query,
                layer.keys,
                layer.values,
                out,
                batch_rows=places,
                lengths=lengths,
                block_tables=layer.table,
                scale=self._scale,
                window=layer.window,
            )

        return attend


def _no_cache() -> LayerCache:
    empty = torch.empty(0)
    return LayerCache(empty, empty, empty, None, None, None)
