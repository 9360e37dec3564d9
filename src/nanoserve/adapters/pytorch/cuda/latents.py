"""Latent attention of a step on a GPU: which rows, which cache, which kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.expansion import Round
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.mixers.latent.part import LatentAttention
from nanoserve.kernels.device.launch import SplitScratch
from nanoserve.kernels.latent import LatentCache
from nanoserve.kernels.latent_attention.launch import (
    ExpandedSums,
    expanded_attention,
    gather_entries_into,
    head_linear,
    latent_decode,
    latent_prefill,
)
from nanoserve.kernels.rope_and_cache.launch import write_latents
from nanoserve.ports.layer_spec import LatentSpec, Rotation
from nanoserve.ports.model_spec import ModelSpec

MOST_FEW_TOKENS = 64
"""Tokens up to which the product of each head has a kernel of its own; for more the vendor's library is faster."""


LEAST_ROOM = 256
"""Keys that the memory holds at least in which they are expanded."""


@attrs.frozen(eq=False)
class LatentSpace:
    """What latent attention computes in, for up to T tokens. What is expanded shares its memory with what is absorbed.

    Attributes:
        query: flat, T times the absorbed queries of all heads; or the keys and values of `room` tokens.
        attended: flat, T times what those attend to; or the sums of T tokens' queries.
        gathered: flat, the entries of `room` tokens.
        tops: float32, of each of T tokens' heads; `weights`, too.
        splits: what parts of long rows leave behind.
        room: tokens whose keys and values are expanded at a time.
    """

    query: Tensor
    attended: Tensor
    gathered: Tensor
    tops: Tensor
    weights: Tensor
    splits: SplitScratch
    room: int

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
        value_dim = max((each.value_dim for each in mixers), default=0)
        expanded = max((each.nope_dim for each in mixers), default=0) + value_dim
        room = max(max_tokens, LEAST_ROOM)
        sums = value_dim * torch.float32.itemsize // dtype.itemsize

        def empty(size: int, of: torch.dtype = dtype) -> Tensor:
            return torch.empty(size, dtype=of, device=device)

        return cls(
            query=empty(heads * max(max_tokens * width, room * expanded)),
            attended=empty(max_tokens * heads * max(latent_dim, sums)),
            gathered=empty(room * width),
            tops=empty(max_tokens * heads, torch.float32),
            weights=empty(max_tokens * heads, torch.float32),
            splits=SplitScratch.create(max_place_splits, heads, latent_dim, 1, device),
            room=room,
        )


class LatentAttending:
    """Latent attention of every layer over one cache, for the tokens of one step after the other.

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
            layer: LatentCache(kv.layers[layer][0], table, mixer.latent_dim)
            for group, table in zip(spec.cache_groups, arena.block_tables, strict=True)
            for layer in group.layers
            if isinstance(mixer := spec.layers[layer].mixer, LatentSpec)
        }

    def decode(
        self,
        mixer: LatentAttention,
        queries: Tensor,
        projected: Tensor,
        out: Tensor,
        places: Tensor,
        *,
        splits: int,
        pdl: bool,
    ) -> None:
        """The newest token of each place; see `AttendsToLatents`."""
        heads, out_heads = _by_head(mixer, queries), _by_head(mixer, out)
        query, attended = self._views(mixer, len(places))
        self._write_newest(mixer, heads, projected, query, places, pdl=pdl)
        self._multiply(heads[..., : mixer.nope_dim], mixer.up_keys, query[..., : mixer.latent_dim], pdl=pdl)
        self._attend_newest(mixer, query, attended, places, splits=splits, pdl=pdl)
        self._multiply(attended, mixer.up_values, out_heads, pdl=pdl)

    def mixed(
        self,
        mixer: LatentAttention,
        queries: Tensor,
        projected: Tensor,
        out: Tensor,
        *,
        places: Tensor,
        tiles: Tensor,
        rounds: Sequence[Round],
        splits: int,
    ) -> None:
        """Chunks' tokens, then the newest token of each place; what no tile names is only written into the cache.

        Chunks are expanded in `rounds`, or absorbed where there are none.
        """
        tokens = len(queries) - len(places)
        heads, out_heads = _by_head(mixer, queries), _by_head(mixer, out)
        query, attended = self._views(mixer, len(queries))
        write_latents(
            projected[:tokens],
            heads[:tokens],
            heads[:tokens, :, mixer.nope_dim :] if rounds else query[:tokens, :, mixer.latent_dim :],
            self._caches[mixer.layer],
            **self._entry(mixer),
            token_rows=self._arena.token_rows[:tokens],
            positions=self._arena.positions[:tokens],
        )
        self._write_newest(mixer, heads[tokens:], projected[tokens:], query[tokens:], places, pdl=False)
        absorbed = slice(tokens if rounds else 0, None)
        self._multiply(
            heads[absorbed, :, : mixer.nope_dim], mixer.up_keys, query[absorbed, :, : mixer.latent_dim]
        )
        if len(tiles) and not rounds:
            cache, scale = self._caches[mixer.layer], mixer.scale
            latent_prefill(query[:tokens], cache, attended[:tokens], tiles=tiles, scale=scale)
        if len(places):
            self._attend_newest(mixer, query[tokens:], attended[tokens:], places, splits=splits, pdl=False)
        self._multiply(attended[absorbed], mixer.up_values, out_heads[absorbed])
        self._expand(mixer, heads[:tokens], out_heads[:tokens], tiles, rounds)

    def _expand(
        self, mixer: LatentAttention, heads: Tensor, out: Tensor, tiles: Tensor, rounds: Sequence[Round]
    ) -> None:
        """Chunks' tokens over the keys of their rows, in memory that absorbed queries have left."""
        space, (tokens, num_heads, _) = self._space, heads.shape
        width, expanded_dim = mixer.latent_dim + mixer.rope_dim, mixer.nope_dim + mixer.value_dim
        sums = tokens * num_heads * mixer.value_dim * torch.float32.itemsize // space.attended.itemsize
        totals = space.attended[:sums].view(torch.float32)
        kept = ExpandedSums(
            totals.view(tokens, num_heads, mixer.value_dim),
            space.tops[: tokens * num_heads].view(tokens, num_heads),
            space.weights[: tokens * num_heads].view(tokens, num_heads),
        )
        for each in rounds:
            gathered = space.gathered[: each.tokens * width].view(each.tokens, width)
            gather_entries_into(self._caches[mixer.layer], each.spans, gathered, longest=each.longest)
            expanded = space.query[: each.tokens * num_heads * expanded_dim].view(
                each.tokens, num_heads * expanded_dim
            )
            torch.mm(gathered[:, : mixer.latent_dim], mixer.up.T, out=expanded)
            expanded_attention(
                heads,
                expanded.view(each.tokens, num_heads, expanded_dim),
                gathered,
                out,
                tiles=tiles,
                spans=each.spans,
                sums=kept,
                scale=mixer.scale,
            )

    def _views(self, mixer: LatentAttention, tokens: int) -> tuple[Tensor, Tensor]:
        """Absorbed queries [tokens, num_heads, latent_dim + rope_dim], and what they attend to."""
        heads, latent_dim, width = mixer.num_heads, mixer.latent_dim, mixer.latent_dim + mixer.rope_dim
        query = self._space.query[: tokens * heads * width].view(tokens, heads, width)
        return query, self._space.attended[: tokens * heads * latent_dim].view(tokens, heads, latent_dim)

    def _entry(self, mixer: LatentAttention) -> dict[str, Any]:
        norm = mixer.latent_norm
        return {"norm_weight": norm.weight, "eps": norm.eps, "rotations": self._rotations[mixer.rotation]}

    def _write_newest(
        self,
        mixer: LatentAttention,
        heads: Tensor,
        projected: Tensor,
        query: Tensor,
        places: Tensor,
        *,
        pdl: bool,
    ) -> None:
        step: dict[str, Any] = {"token_rows": places, "positions": self._arena.lengths, "newest": True}
        cache = self._caches[mixer.layer]
        rotated = query[..., mixer.latent_dim :]
        write_latents(projected, heads, rotated, cache, **self._entry(mixer), **step, pdl=pdl)

    def _attend_newest(
        self,
        mixer: LatentAttention,
        query: Tensor,
        attended: Tensor,
        places: Tensor,
        *,
        splits: int,
        pdl: bool,
    ) -> None:
        cache, lengths, scale = self._caches[mixer.layer], self._arena.lengths, mixer.scale
        if self._invariant:
            latent_prefill(query, cache, attended, tiles=places, lengths=lengths, scale=scale)
            return
        latent_decode(
            query,
            cache,
            attended,
            batch_rows=places,
            lengths=lengths,
            scale=scale,
            splits=splits,
            scratch=self._space.splits,
            pdl=pdl,
        )

    def _multiply(self, x: Tensor, weight: Tensor, out: Tensor, *, pdl: bool = False) -> None:
        if self._invariant or len(x) <= MOST_FEW_TOKENS:
            head_linear(x, weight, out, pdl=pdl)
        else:
            torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))


def _by_head(mixer: LatentAttention, rows: Tensor) -> Tensor:
    """Rows of all heads' elements, which may be columns of wider ones, as [tokens, num_heads, elements]."""
    return rows.view(len(rows), mixer.num_heads, rows.shape[1] // mixer.num_heads)
