"""Chunks behind cached tokens, over caches in which all that no query sees is NaN, and over memory too small for all keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from nanoserve.kernels.expanded_attention import reference
from nanoserve.kernels.expanded_attention.launch import (
    ExpandedSums,
    expanded_attention,
    gather_entries_into,
)
from nanoserve.kernels.expanded_attention.tuning import BlockSizes, choose_block, cut_rounds
from nanoserve.kernels.latent import LatentCache, padded
from nanoserve.kernels.tiles import make_tiles
from nanoserve.kernels.trial import Comparison, Inputs, LatentHeads, compare_around_poison

CHUNKS: Final = ((0, 3), (58, 12), (0, 1), (0, 133), (145, 20))
"""Position of the first query and number of queries."""
MadeChunk = tuple[int, int, int, int]
"""Index of the chunk, position of the first query, number of queries, index of the first one in the step."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """Chunks of rows in another order, with a token of NaN between two of them that belongs to neither."""

    sizes: LatentHeads
    query: Tensor
    cache: LatentCache
    up: Tensor
    chunks: list[MadeChunk]

    @classmethod
    def of(cls, inputs: Inputs, sizes: LatentHeads, rows: Sequence[tuple[int, int]]) -> Case:
        """Chunks of (position of the first query, number of queries)."""
        chunks, token = [], 1
        for index, (start, length) in enumerate(rows):
            chunks.append((index, start, length, token))
            token += length + 1
        query = inputs.poisoned(token, sizes.num_heads, sizes.nope_dim + sizes.rope_dim)
        for _, _, length, first in chunks:
            query[first : first + length] = inputs.normal(length, *query.shape[1:])
        cache = sizes.cache(inputs, [start + length for start, length in reversed(rows)])
        up = inputs.normal(sizes.num_heads, sizes.nope_dim + sizes.value_dim, sizes.latent_dim)
        return cls(sizes, query, cache, up * sizes.latent_dim**-0.5, chunks)

    def blocks(self) -> BlockSizes:
        """As serving chooses them."""
        nope, rope, value = (
            padded(each) for each in (self.sizes.nope_dim, self.sizes.rope_dim, self.sizes.value_dim)
        )
        return choose_block(nope + rope, value, self.query.dtype)

    def exact(self) -> Tensor:
        """Float32, NaN for tokens of no chunk."""
        shape = len(self.query), self.sizes.num_heads, self.sizes.value_dim
        out = torch.full(shape, torch.nan, device=self.query.device)
        up_keys, up_values = self.up[:, : self.sizes.nope_dim], self.up[:, self.sizes.nope_dim :]
        for index, start, length, token in self.chunks:
            places = torch.arange(start + length, device=out.device)
            blocks = self.cache.tables[self._row(index), places // self.sizes.block_size].long()
            entries = self.cache.entries[blocks, places % self.sizes.block_size]
            query = self.query[token : token + length]
            out[token : token + length] = reference.expanded_attention(
                query, entries, up_keys, up_values, scale=self.sizes.scale
            )
        return out

    def run(
        self,
        blocks: BlockSizes | None = None,
        *,
        room: int | None = None,
        queries: int = 0,
        chunks: list[MadeChunk] | None = None,
    ) -> Tensor:
        """Those chunks, or all, with memory for `room` keys, in tiles of at most `queries`; NaN where no tile writes."""
        sizes, device, dtype = blocks or self.blocks(), self.query.device, self.query.dtype
        chosen = self.chunks if chunks is None else chunks
        made = [(each, *chunk[1:]) for each, chunk in enumerate(chosen)]
        tiles = torch.tensor(make_tiles(made, queries or sizes.rows), dtype=torch.int32, device=device)
        ends = [(self._row(index), start + length) for index, start, length, _ in chosen]
        room = room or sum(end for _, end in ends)
        up = self.up.flatten(0, 1)
        tokens, heads, value = len(self.query), self.sizes.num_heads, self.sizes.value_dim
        out = torch.full((tokens, heads, value), torch.nan, dtype=dtype, device=device)
        sums = ExpandedSums(
            *(
                torch.full(shape, torch.nan, device=device)
                for shape in (out.shape, out.shape[:2], out.shape[:2])
            )
        )
        for spans in cut_rounds(ends, room, sizes.keys):
            gathered = torch.full((room, self.sizes.width), torch.nan, dtype=dtype, device=device)
            cut = torch.tensor(spans, dtype=torch.int32, device=device)
            longest = max(end - begin for _, begin, end, _ in spans)
            gather_entries_into(self.cache, cut, gathered, longest=longest)
            # Row by row, each where memory is aligned: the vendor's product of other shapes may sum in another order, and
            # then it is not the kernel whose bits depend on the cuts.
            latents = [each[: self.sizes.latent_dim].clone() for each in gathered]
            expanded = torch.stack([each @ up.T for each in latents]).view(room, heads, -1)
            how: dict[str, Any] = {
                "tiles": tiles,
                "spans": cut,
                "sums": sums,
                "scale": self.sizes.scale,
                "blocks": blocks,
            }
            expanded_attention(self.query, expanded, gathered, out, **how)
        return out

    def _row(self, chunk: int) -> int:
        return len(self.chunks) - 1 - chunk


def check_expanded_attention(inputs: Inputs, sizes: LatentHeads) -> Iterator[Comparison]:
    """All chunks at once, and in memory that holds some of the keys."""
    case = Case.of(inputs, sizes, CHUNKS)
    wanted = case.exact()
    for room in (None, 2 * case.blocks().keys):
        yield from compare_around_poison(
            f"room for {room or 'all'} keys, {sizes}", case.run(room=room), wanted
        )
