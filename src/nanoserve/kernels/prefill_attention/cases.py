"""Chunks at the start of rows and behind cached tokens, over caches in which all that no query sees is NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from nanoserve.kernels.paged import PagedCache
from nanoserve.kernels.prefill_attention import reference
from nanoserve.kernels.prefill_attention.launch import prefill_attention
from nanoserve.kernels.prefill_attention.tuning import BlockSizes, choose_block, queries_per_tile
from nanoserve.kernels.testing import Comparison, Inputs, compare_around_poison
from nanoserve.kernels.testing_attention import Chunk, Heads, Queries, paged_cache

CHUNKS: Final = ((0, 3), (58, 12), (0, 1), (0, 33), (15, 2))
"""Position of the first query and number of queries."""
NEWEST: Final = ((2, 1), (69, 1), (0, 1), (32, 1), (16, 1))
"""The same of rows of 3 to 70 tokens that decode."""
LONGEST_WINDOW: Final = 8192
"""The kernel is compiled for a window, so that one row has to be longer; up to here."""


class Case(NamedTuple):
    """Chunks of rows, and how scores become weights."""

    heads: Heads
    queries: Queries
    cache: PagedCache
    scoring: dict[str, Any]

    @classmethod
    def of(cls, inputs: Inputs, heads: Heads, rows: Sequence[tuple[int, int]]) -> Case:
        """Chunks of (position of the first query, number of queries)."""
        spans = [(heads.first_seen(start), start + length) for start, length in reversed(rows)]
        queries = Queries.of(inputs, rows, heads.num_heads * heads.head_dim)
        return cls(heads, queries, paged_cache(inputs, heads, spans), heads.scoring(inputs))

    def exact(self) -> Tensor:
        """Float32, NaN for tokens of no chunk."""
        tokens, chunks = self.queries
        return reference.prefill_attention(tokens, self.cache, chunks=chunks, **self.scoring)

    def tiled(
        self, blocks: BlockSizes | None = None, chunks: list[Chunk] | None = None, queries: int = 0
    ) -> Tensor:
        """All chunks, or others instead, in tiles of at most `queries`; NaN where no tile writes."""
        sizes = blocks or choose_block(self.heads.head_dim, self.queries.tokens.dtype)
        most = queries or queries_per_tile(self.heads.num_heads, self.heads.num_kv_heads, sizes)
        return self._attend(self.queries.tokens, tiles=self.queries.tiles(most, chunks), blocks=blocks)

    def newest(self, blocks: BlockSizes | None = None) -> Tensor:
        """The last query of each chunk, as a decoding row."""
        query, rows, lengths = self.queries.newest()
        return self._attend(query, tiles=rows, lengths=lengths, blocks=blocks)

    def _attend(self, query: Tensor, **how: Any) -> Tensor:
        out = torch.full_like(query, torch.nan)
        prefill_attention(query, self.cache, out, **self.scoring, **how)
        return out


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
    yield Comparison(str(heads), case.newest(), case.exact()[case.queries.last])


def _rows_for(heads: Heads, rows: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The rows, and behind them one that is longer than the window."""
    if heads.window is None or heads.window > LONGEST_WINDOW:
        return rows
    last = rows[1][1] if rows[1][1] == 1 else 3
    return (*rows, (heads.window + 5 - last, last))
