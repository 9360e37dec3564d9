"""Rows that decode, and chunks behind cached tokens, over pools in which all that no query sees is NaN."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final

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
from nanoserve.kernels.trial import Comparison, Inputs, LatentHeads, compare_around_poison

CHUNKS: Final = ((0, 3), (58, 12), (0, 1), (0, 33), (15, 2))
"""Position of the first query and number of queries."""
SPLITS: Final = (1, 4)
UNUSED_LENGTH: Final = 10**9
"""The length of rows without a chunk."""
MadeChunk = tuple[int, int, int, int]
"""Row, position of the first query, number of queries, index of the first one in the step."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """Chunks of rows in another order, with a token of NaN between two of them that belongs to neither."""

    sizes: LatentHeads
    query: Tensor
    cache: LatentCache
    chunks: list[MadeChunk]

    @classmethod
    def of(cls, inputs: Inputs, sizes: LatentHeads, rows: Sequence[tuple[int, int]]) -> Case:
        """Chunks of (position of the first query, number of queries)."""
        chunks, token = [], 1
        for index, (start, length) in enumerate(rows):
            chunks.append((len(rows) - 1 - index, start, length, token))
            token += length + 1
        query = inputs.poisoned(token, sizes.num_heads, sizes.width)
        for _, _, length, first in chunks:
            query[first : first + length] = inputs.normal(length, sizes.num_heads, sizes.width)
        cache = sizes.cache(inputs, [start + length for start, length in reversed(rows)])
        return cls(sizes, query, cache, chunks)

    def exact(self) -> Tensor:
        """Float32, NaN for tokens of no chunk."""
        out = torch.full_like(self.query[..., : self.sizes.latent_dim], torch.nan, dtype=torch.float32)
        for row, start, length, token in self.chunks:
            places = [(row, start + offset) for offset in range(length)]
            query = self.query[token : token + length]
            out[token : token + length] = reference.latent_attention(
                query, self.cache, places=places, scale=self.sizes.scale
            )
        return out

    @property
    def last(self) -> list[int]:
        """The last token of each chunk."""
        return [token + length - 1 for _, _, length, token in self.chunks]

    def tiled(
        self, blocks: BlockSizes | None = None, chunks: list[MadeChunk] | None = None, queries: int = 0
    ) -> Tensor:
        """All chunks, or others instead, in tiles of at most `queries`; NaN where no tile writes."""
        rows = (blocks or self._prefill_block()).rows
        most = queries or queries_per_tile(self.sizes.num_heads, rows)
        tiles = [
            (row, token + offset, min(most, length - offset), start + offset)
            for row, start, length, token in (self.chunks if chunks is None else chunks)
            for offset in range(0, length, most)
        ]
        out = self._out(len(self.query))
        latent_prefill(
            self.query, self.cache, out, tiles=self._ints(tiles), blocks=blocks, scale=self.sizes.scale
        )
        return out

    def newest(self, blocks: BlockSizes | None = None) -> Tensor:
        """The last query of each chunk, as a decoding row, with the arithmetic of tiles."""
        out = self._out(len(self.chunks))
        query, step = self._decoding()
        step = {"tiles": step["batch_rows"], "lengths": step["lengths"]}
        latent_prefill(query, self.cache, out, **step, blocks=blocks, scale=self.sizes.scale)
        return out

    def decoded(
        self, splits: int, blocks: BlockSizes | None = None, *, places: slice = slice(None), pdl: bool = False
    ) -> Tensor:
        """The last query of some chunks, as decoding rows."""
        query, step = self._decoding()
        query, step["batch_rows"] = query[places], step["batch_rows"][places]
        out = self._out(len(query))
        scratch = SplitScratch.create(
            len(query), self.sizes.num_heads, self.sizes.latent_dim, splits, out.device
        )
        for tensor in scratch:
            tensor.fill_(torch.nan)
        if pdl:
            torch.cuda.synchronize(out.device)
        how: dict[str, Any] = {"splits": splits, "scratch": scratch, "blocks": blocks, "pdl": pdl}
        latent_decode(query, self.cache, out, **step, **how, scale=self.sizes.scale)
        return out

    def _decoding(self) -> tuple[Tensor, dict[str, Any]]:
        lengths = [UNUSED_LENGTH] * len(self.cache.tables)
        for row, start, length, _ in self.chunks:
            lengths[row] = start + length
        rows = self._ints([row for row, _, _, _ in self.chunks])
        return self.query[self.last], {"batch_rows": rows, "lengths": self._ints(lengths)}

    def _prefill_block(self) -> BlockSizes:
        return prefill_block(padded_width(self.sizes.latent_dim, self.sizes.rope_dim), self.query.dtype)

    def _out(self, tokens: int) -> Tensor:
        shape = tokens, self.sizes.num_heads, self.sizes.latent_dim
        return torch.full(shape, torch.nan, dtype=self.query.dtype, device=self.query.device)

    def _ints(self, numbers: object) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.query.device)


def check_latent_decode(inputs: Inputs, sizes: LatentHeads) -> Iterator[Comparison]:
    """One program per row and several, with and without PDL."""
    case = Case.of(inputs, sizes, CHUNKS)
    wanted = case.exact()[case.last]
    for splits in SPLITS:
        for pdl in inputs.launches:
            yield Comparison(f"{splits} splits, {sizes}", case.decoded(splits, pdl=pdl), wanted)


def check_latent_prefill(inputs: Inputs, sizes: LatentHeads) -> Iterator[Comparison]:
    """All chunks, in tiles as serving cuts them, and each row's newest token."""
    case = Case.of(inputs, sizes, CHUNKS)
    wanted = case.exact()
    yield from compare_around_poison(f"chunks, {sizes}", case.tiled(), wanted)
    yield Comparison(f"newest tokens, {sizes}", case.newest(), wanted[case.last])
