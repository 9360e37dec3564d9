"""Rows that decode, and chunks behind cached tokens, over pools in which all that no query sees is NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nanoserve.kernels.device.launch import SplitScratch
from nanoserve.kernels.latent import LatentCache
from nanoserve.kernels.latent_attention import reference
from nanoserve.kernels.latent_attention.launch import latent_decode, latent_prefill
from nanoserve.kernels.latent_attention.tuning import (
    BlockSizes,
    padded_width,
    prefill_block,
    queries_per_tile,
)
from nanoserve.kernels.testing import Comparison, Inputs, compare_around_poison
from nanoserve.kernels.testing_attention import Chunk, LatentHeads, Queries

CHUNKS: Final = ((0, 3), (58, 12), (0, 1), (0, 33), (15, 2))
"""Position of the first query and number of queries."""
SPLITS: Final = (1, 4)


class Case(NamedTuple):
    """Chunks of rows, their queries absorbed."""

    sizes: LatentHeads
    queries: Queries
    cache: LatentCache

    @classmethod
    def of(cls, inputs: Inputs, sizes: LatentHeads, rows: Sequence[tuple[int, int]]) -> Case:
        """Chunks of (position of the first query, number of queries)."""
        queries = Queries.of(inputs, rows, sizes.num_heads, sizes.width)
        return cls(sizes, queries, sizes.cache(inputs, [start + length for start, length in reversed(rows)]))

    def exact(self) -> Tensor:
        """Float32, NaN for tokens of no chunk."""
        out = self._out(self.queries.tokens).float()
        for row, start, length, token in self.queries.chunks:
            places = [(row, start + offset) for offset in range(length)]
            query = self.queries.tokens[token : token + length]
            out[token : token + length] = reference.latent_attention(
                query, self.cache, places=places, scale=self.sizes.scale
            )
        return out

    def tiled(
        self, blocks: BlockSizes | None = None, chunks: list[Chunk] | None = None, queries: int = 0
    ) -> Tensor:
        """All chunks, or others instead, in tiles of at most `queries`; NaN where no tile writes."""
        width = padded_width(self.sizes.latent_dim, self.sizes.rope_dim)
        rows = (blocks or prefill_block(width, self.queries.tokens.dtype)).rows
        most = queries or queries_per_tile(self.sizes.num_heads, rows)
        return self._attend(self.queries.tokens, tiles=self.queries.tiles(most, chunks), blocks=blocks)

    def newest(self, blocks: BlockSizes | None = None) -> Tensor:
        """The last query of each chunk, as a decoding row, with the arithmetic of tiles."""
        query, rows, lengths = self.queries.newest()
        return self._attend(query, tiles=rows, lengths=lengths, blocks=blocks)

    def decoded(
        self, splits: int, blocks: BlockSizes | None = None, *, places: slice = slice(None), pdl: bool = False
    ) -> Tensor:
        """The last query of some chunks, as decoding rows."""
        query, rows, lengths = self.queries.newest()
        query, rows = query[places], rows[places]
        out, heads = self._out(query), self.sizes.num_heads
        scratch = SplitScratch.create(len(query), heads, self.sizes.latent_dim, splits, out.device)
        for tensor in scratch:
            tensor.fill_(torch.nan)
        if pdl:
            torch.cuda.synchronize(out.device)
        step: dict[str, Any] = {"batch_rows": rows, "lengths": lengths, "scale": self.sizes.scale}
        how: dict[str, Any] = {"splits": splits, "scratch": scratch, "blocks": blocks, "pdl": pdl}
        latent_decode(query, self.cache, out, **step, **how)
        return out

    def _attend(self, query: Tensor, **how: Any) -> Tensor:
        out = self._out(query)
        latent_prefill(query, self.cache, out, scale=self.sizes.scale, **how)
        return out

    def _out(self, query: Tensor) -> Tensor:
        return query.new_full((*query.shape[:2], self.sizes.latent_dim), torch.nan)


def check_latent_decode(inputs: Inputs, sizes: LatentHeads) -> Iterator[Comparison]:
    """One program per row and several, with and without PDL."""
    case = Case.of(inputs, sizes, CHUNKS)
    wanted = case.exact()[case.queries.last]
    for splits in SPLITS:
        for pdl in inputs.launches:
            yield Comparison(f"{splits} splits, {sizes}", case.decoded(splits, pdl=pdl), wanted)


def check_latent_prefill(inputs: Inputs, sizes: LatentHeads) -> Iterator[Comparison]:
    """All chunks, in tiles as serving cuts them, and each row's newest token."""
    case = Case.of(inputs, sizes, CHUNKS)
    wanted = case.exact()
    yield from compare_around_poison(f"chunks, {sizes}", case.tiled(), wanted)
    yield Comparison(f"newest tokens, {sizes}", case.newest(), wanted[case.queries.last])
