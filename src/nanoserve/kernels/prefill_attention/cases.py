"""Chunks at the start of rows and behind cached tokens, over caches in which all that no query sees is NaN."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from nanoserve.kernels.paged import PagedCache
from nanoserve.kernels.prefill_attention import reference
from nanoserve.kernels.prefill_attention.launch import prefill_attention
from nanoserve.kernels.prefill_attention.tuning import BlockSizes, choose_block, queries_per_tile
from nanoserve.kernels.tiles import make_tiles
from nanoserve.kernels.trial import Comparison, Heads, Inputs, compare_around_poison, paged_cache

CHUNKS: Final = ((0, 3), (58, 12), (0, 1), (0, 33), (15, 2))
"""Position of the first query and number of queries."""
NEWEST: Final = ((2, 1), (69, 1), (0, 1), (32, 1), (16, 1))
"""The same of rows of 3 to 70 tokens that decode."""
LONGEST_WINDOW: Final = 8192
"""The kernel is compiled for a window, so that one row has to be longer; up to here."""
UNUSED_LENGTH: Final = 10**9
"""The length of rows without a chunk."""
MadeChunk = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """Chunks of rows in another order, with a token of NaN between two of them that belongs to neither."""

    heads: Heads
    query: Tensor
    cache: PagedCache
    chunks: list[MadeChunk]
    scoring: dict[str, Any]

    @classmethod
    def of(cls, inputs: Inputs, heads: Heads, rows: Sequence[tuple[int, int]]) -> Case:
        """Chunks of (position of the first query, number of queries)."""
        spans = [(heads.first_seen(start), start + length) for start, length in reversed(rows)]
        chunks, token = [], 1
        for index, (start, length) in enumerate(rows):
            chunks.append((len(rows) - 1 - index, start, length, token))
            token += length + 1
        query = inputs.poisoned(token, heads.num_heads * heads.head_dim)
        for _, _, length, first in chunks:
            query[first : first + length] = inputs.normal(length, query.shape[1])
        return cls(heads, query, paged_cache(inputs, heads, spans), chunks, heads.scoring(inputs))

    def exact(self) -> Tensor:
        """Float32, NaN for tokens of no chunk."""
        return reference.prefill_attention(self.query, self.cache, chunks=self.chunks, **self.scoring)

    def tiled(
        self, blocks: BlockSizes | None = None, chunks: list[MadeChunk] | None = None, queries: int = 0
    ) -> Tensor:
        """All chunks, or others instead, in tiles of at most `queries`; NaN where no tile writes."""
        sizes = blocks or choose_block(self.heads.head_dim, self.query.dtype)
        queries = queries or queries_per_tile(self.heads.num_heads, self.heads.num_kv_heads, sizes)
        tiles = torch.tensor(
            make_tiles(self.chunks if chunks is None else chunks, queries), dtype=torch.int32
        )
        out = torch.full_like(self.query, torch.nan)
        self._launch(self.query, out, tiles, blocks=blocks)
        return out

    @property
    def last(self) -> list[int]:
        """The last token of each chunk."""
        return [token + length - 1 for _, _, length, token in self.chunks]

    def newest(self, blocks: BlockSizes | None = None) -> Tensor:
        """The last query of each chunk, as a decoding row."""
        lengths = torch.full((len(self.cache.tables),), UNUSED_LENGTH, dtype=torch.int32)
        for row, start, length, _ in self.chunks:
            lengths[row] = start + length
        rows = torch.tensor([row for row, _, _, _ in self.chunks], dtype=torch.int32)
        query = self.query[self.last]
        out = torch.full_like(query, torch.nan)
        self._launch(query, out, rows, lengths=lengths.to(out.device), blocks=blocks)
        return out

    def _launch(self, query: Tensor, out: Tensor, tiles: Tensor, **how: Any) -> None:
        prefill_attention(query, self.cache, out, tiles=tiles.to(out.device), **self.scoring, **how)


def check_prefill_attention(
    inputs: Inputs,
    heads: Heads,
    rows: Sequence[tuple[int, int]] | None = None,
    blocks: BlockSizes | None = None,
) -> Iterator[Comparison]:
    """All chunks, in tiles as serving cuts them."""
    case = Case.of(inputs, heads, rows or _rows_for(heads, CHUNKS))
    yield from compare_around_poison(str(heads), case.tiled(blocks), case.exact())


def check_prefill_attention_newest(inputs: Inputs, heads: Heads) -> Iterator[Comparison]:
    """Each row's newest token."""
    case = Case.of(inputs, heads, _rows_for(heads, NEWEST))
    yield Comparison(str(heads), case.newest(), case.exact()[case.last])


def _rows_for(heads: Heads, rows: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The rows, and behind them one that is longer than the window."""
    if heads.window is None or heads.window > LONGEST_WINDOW:
        return rows
    last = rows[1][1] if rows[1][1] == 1 else 3
    return (*rows, (heads.window + 5 - last, last))
