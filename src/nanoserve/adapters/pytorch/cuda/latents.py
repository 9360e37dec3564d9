"""Latent attention of a step on a GPU; its steps fulfil `layers.latent_attention.AttendsToLatents`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.latent_attention import LatentAttention
from nanoserve.kernels.latent import LatentCache
from nanoserve.kernels.latent_attention.launch import LatentScratch, latent_prefill
from nanoserve.ports.layer_spec import LatentSpec, Rotation
from nanoserve.ports.model_spec import ModelSpec

MOST_FEW_TOKENS = 64
"""Tokens up to which the product of each head has a kernel of its own; for more the vendor's library is faster."""
Attend = Callable[[LatentAttention, Tensor, Tensor], Tensor]


@attrs.frozen(eq=False)
class LatentSpace:
    """What latent attention computes in, for up to T tokens.

    Attributes:
        query: flat, T times the absorbed queries of all heads; `attended`, T times what they attend to.
        splits: what parts of long rows leave behind.
    """

    query: Tensor
    attended: Tensor
    splits: LatentScratch

    @classmethod
    def create(
        cls,
        spec: ModelSpec,
        *,
        max_tokens: int,
        max_place_splits: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Self:
        """For the widest of the layers, or nothing where none has latent attention."""
        mixers = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, LatentSpec)]
        heads = max((each.num_heads for each in mixers), default=0)
        latent_dim = max((each.latent_dim for each in mixers), default=0)
        width = max((each.cache_elements for each in mixers), default=0)
        return cls(
            torch.empty(max_tokens * heads * width, dtype=dtype, device=device),
            torch.empty(max_tokens * heads * latent_dim, dtype=dtype, device=device),
            LatentScratch.create(max_place_splits, heads, latent_dim, device),
        )


class LatentAttending:
    """Latent attention of every layer over one cache; makes the steps that attend to it.

    `invariant`: decode with the arithmetic of prefill, so that the batch and the chunking leave no trace.
    """

    def __init__(
        self,
        spec: ModelSpec,
        arena: Arena,
        space: LatentSpace,
        kv: KVStore,
        rotations: Mapping[Rotation, Tensor],
        *,
        invariant: bool,
    ) -> None:
        self._arena, self._space, self._rotations = arena, space, rotations
        self._invariant = invariant
        self._caches: dict[int, LatentCache] = {
            layer: LatentCache(kv.latents[layer], arena.block_tables[number], mixer.latent_dim)
            for number, group in enumerate(spec.cache_groups)
            for layer in group.layers
            if isinstance(mixer := spec.layers[layer].mixer, LatentSpec)
        }

    def decode(self, places: Tensor, *, splits: int, pdl: bool) -> Attend:
        """The newest token of each place."""
        lengths = self._arena.lengths

        def attend(mixer: LatentAttention, queries: Tensor, projected: Tensor, out: Tensor) -> None:
            query = self._prepared(mixer, queries, projected, places, lengths, newest=True, pdl=pdl)
            attended = self._attended(mixer, len(places))
            self._decode(mixer, query, attended, places, splits=splits, pdl=pdl)
            self._by_head(attended, mixer.up_values, out, pdl=pdl)

        return self._returning(attend)

    def mixed(self, num_chunk_tokens: int, places: Tensor, tiles: Tensor, *, splits: int) -> Attend:
        """Chunks' tokens, then the newest token of each place; what no tile names is only written into the cache."""
        rows, positions = self._arena.token_rows[:num_chunk_tokens], self._arena.positions[:num_chunk_tokens]
        total = num_chunk_tokens + len(places)
        chunks, newest = slice(num_chunk_tokens), slice(num_chunk_tokens, total)

        def attend(mixer: LatentAttention, queries: Tensor, projected: Tensor, out: Tensor) -> None:
            query, attended = self._query(mixer, total), self._attended(mixer, total)
            self._write(mixer, queries[chunks], projected[chunks], query[chunks], rows, positions)
            self._write(
                mixer,
                queries[newest],
                projected[newest],
                query[newest],
                places,
                self._arena.lengths,
                newest=True,
            )
            self._absorb(mixer, queries, query)
            if len(tiles):
                cache = self._caches[mixer.layer]
                latent_prefill(query[chunks], cache, attended[chunks], tiles=tiles, scale=mixer.scale)
            if len(places):
                self._decode(mixer, query[newest], attended[newest], places, splits=splits, pdl=False)
            self._by_head(attended, mixer.up_values, out)

        return self._returning(attend)
