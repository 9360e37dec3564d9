"""Chunks behind cached tokens, over caches in which all that no query sees is NaN, and over memory too small for all keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

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
from nanoserve.kernels.testing import Comparison, Inputs, compare_around_poison
from nanoserve.kernels.testing_attention import Chunk, LatentHeads, Queries

CHUNKS: Final = ((0, 3), (58, 12), (0, 1), (0, 133), (145, 20))
"""Position of the first query and number of queries."""


class Case(NamedTuple):
    """Chunks of rows, and the weight that expands latents."""

    sizes: LatentHeads
    queries: Queries
    cache: LatentCache
    up: Tensor

    @classmethod
    def of(cls, inputs: Inputs, sizes: LatentHeads, rows: Sequence[tuple[int, int]]) -> Case:
        """Chunks of (position of the first query, number of queries)."""
        queries = Queries.of(inputs, rows, sizes.num_heads, sizes.nope_dim + sizes.rope_dim)
        cache = sizes.cache(inputs, [start + length for start, length in reversed(rows)])
        up = inputs.normal(sizes.num_heads, sizes.nope_dim + sizes.value_dim, sizes.latent_dim)
        return cls(sizes, queries, cache, up * sizes.latent_dim**-0.5)

    def blocks(self) -> BlockSizes:
        """As serving chooses them."""
        nope, rope, value = (
            padded(each) for each in (self.sizes.nope_dim, self.sizes.rope_dim, self.sizes.value_dim)
        )
        return choose_block(nope + rope, value, self.queries.tokens.dtype)

    def exact(self) -> Tensor:
        """Float32, NaN for tokens of no chunk."""
        out, size = self._out().float(), self.sizes.block_size
        up_keys, up_values = self.up[:, : self.sizes.nope_dim], self.up[:, self.sizes.nope_dim :]
        for row, start, length, token in self.queries.chunks:
            places = torch.arange(start + length, device=out.device)
            entries = self.cache.entries[self.cache.tables[row, places // size].long(), places % size]
            query = self.queries.tokens[token : token + length]
            out[token : token + length] = reference.expanded_attention(
                query, entries, up_keys, up_values, scale=self.sizes.scale
            )
        return out

    def tiled(
        self,
        blocks: BlockSizes | None = None,
        chunks: list[Chunk] | None = None,
        queries: int = 0,
        room: int | None = None,
    ) -> Tensor:
        """Those chunks, or all, with memory for `room` keys, in tiles of at most `queries`; NaN where no tile writes."""
        sizes, chosen = blocks or self.blocks(), self.queries.chunks if chunks is None else chunks
        tiles = self.queries.tiles(
            queries or sizes.rows, [(each, *chunk[1:]) for each, chunk in enumerate(chosen)]
        )
        ends = [(row, start + length) for row, start, length, _ in chosen]
        room = room or sum(end for _, end in ends)
        out, up = self._out(), self.up.flatten(0, 1)
        sums = ExpandedSums(
            *(
                torch.full_like(each, torch.nan, dtype=torch.float32)
                for each in (out, out[..., 0], out[..., 0])
            )
        )
        for spans in cut_rounds(ends, room, sizes.keys):
            gathered = out.new_full((room, self.sizes.width), torch.nan)
            cut = torch.tensor(spans, dtype=torch.int32, device=out.device)
            longest = max(end - begin for _, begin, end, _ in spans)
            gather_entries_into(self.cache, cut, gathered, longest=longest)
            # Row by row, each where memory is aligned: the vendor's product of other shapes may sum in another order, and
            # then it is not the kernel whose bits depend on the cuts.
            latents = [each[: self.sizes.latent_dim].clone() for each in gathered]
            expanded = torch.stack([each @ up.T for each in latents]).view(room, self.sizes.num_heads, -1)
            expanded_attention(
                self.queries.tokens,
                expanded,
                gathered,
                out,
                tiles=tiles,
                spans=cut,
                sums=sums,
                scale=self.sizes.scale,
                blocks=blocks,
            )
        return out

    def _out(self) -> Tensor:
        tokens = self.queries.tokens
        return tokens.new_full((len(tokens), self.sizes.num_heads, self.sizes.value_dim), torch.nan)


def check_expanded_attention(inputs: Inputs, sizes: LatentHeads) -> Iterator[Comparison]:
    """All chunks at once, and in memory that holds some of the keys."""
    case = Case.of(inputs, sizes, CHUNKS)
    wanted = case.exact()
    for room in (None, 2 * case.blocks().keys):
        name = f"room for {room or 'all'} keys, {sizes}"
        yield from compare_around_poison(name, case.tiled(room=room), wanted)
