"""What all layers of one cache group share in a step: which blocks each row reads and which positions it may see.

Rows with one query (decoding) are batched with others of similar length; a row with more queries (a prefill chunk)
stands alone and is cut into tiles of queries, so that most of what the causal mask hides is never computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

TILE = 64
"""Queries of a prefill chunk that are attended to together; measured best of 32 to 512 on one core and on two."""
MAX_PADDING = 1.25
"""How many times its own number of blocks a batch of decoding rows may read, being as wide as its longest row."""
MAX_BATCH_BLOCKS = 2048
"""Blocks that a batch of decoding rows reads at most (more than one row only), which bounds the scratch memory."""


class CacheRead(NamedTuple):
    """The blocks that B rows read, N each.

    Attributes:
        blocks: int64 [B * num_kv_heads * N], indices into a cache seen as [blocks * num_kv_heads, ...].
        hidden: int64, which of the B * num_kv_heads * N * block_size gathered positions no query may see.
        visible: bool [B, N * block_size], the positions that some query of the row sees.
        first: position of each row's first gathered token.
    """

    blocks: Tensor
    hidden: Tensor
    visible: Tensor
    first: tuple[int, ...]


class DecodeBatch(NamedTuple):
    """Rows with one query each: which tokens they are (None for all, in order), what they read, the mask to add."""

    tokens: Tensor | None
    cache: CacheRead
    bias: Tensor


class Tile(NamedTuple):
    """Queries [start, stop) of the step over gathered positions [low, high).

    `future` hides, among the last stop - start positions, those behind each query; `past` hides, among the first
    ones, those that left its window. Both are bool [queries, 1, positions].
    """

    start: int
    stop: int
    low: int
    high: int
    future: Tensor
    past: Tensor | None


class PrefillRow(NamedTuple):
    """A row with several queries: what it reads and the tiles of its queries."""

    cache: CacheRead
    tiles: tuple[Tile, ...]


class AttentionPlan(NamedTuple):
    """One step's attention over one cache group."""

    decode: tuple[DecodeBatch, ...]
    prefill: tuple[PrefillRow, ...]


class _Row(NamedTuple):
    """One row: its place in the tables, its first token, its queries, and the positions [low, context) it sees."""

    row: int
    token: int
    queries: int
    low: int
    context: int


def make_plan(
    block_tables: Tensor,
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    *,
    num_kv_heads: int,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
) -> AttentionPlan:
    """See `plan_attention` in the package."""
    rows = list(_rows(query_lengths, context_lengths, window))
    single = [row for row in rows if row.queries == 1]
    batches = list(_batches(single, block_size))
    whole = len(batches) == 1 and len(single) == len(rows)

    def read(batch: list[_Row]) -> CacheRead:
        return _read(block_tables, batch, num_kv_heads, block_size)

    return AttentionPlan(
        decode=tuple(_decode(batch, read(batch), num_kv_heads, dtype, whole) for batch in batches),
        prefill=tuple(_prefill(row, read([row]), window) for row in rows if row.queries > 1),
    )


def _rows(queries: Sequence[int], contexts: Sequence[int], window: int | None) -> Iterator[_Row]:
    token = 0
    for row, (count, context) in enumerate(zip(queries, contexts, strict=True)):
        low = 0 if window is None else max(0, context - count + 1 - window)
        yield _Row(row, token, count, low, context)
        token += count


def _batches(rows: list[_Row], block_size: int) -> Iterator[list[_Row]]:
    """Cut decoding rows, in their order where possible, into batches that waste little on padding."""

    def blocks(row: _Row) -> int:
        return (row.context - 1) // block_size - row.low // block_size + 1

    if _fits(counts := [blocks(row) for row in rows]):
        if rows:
            yield rows
        return
    batch: list[_Row] = []
    counts = []
    for row in sorted(rows, key=blocks):
        if not _fits([*counts, blocks(row)]):
            yield batch
            batch, counts = [], []
        batch.append(row)
        counts.append(blocks(row))
    yield batch


def _fits(counts: list[int]) -> bool:
    if len(counts) <= 1:
        return True
    read = max(counts) * len(counts)
    return read <= MAX_PADDING * sum(counts) + len(counts) and read <= MAX_BATCH_BLOCKS


def _read(tables: Tensor, rows: list[_Row], num_kv_heads: int, block_size: int) -> CacheRead:
    device = tables.device
    index = torch.tensor([row.row for row in rows], device=device)
    low = torch.tensor([row.low for row in rows], device=device)[:, None]
    context = torch.tensor([row.context for row in rows], device=device)[:, None]
    first = low // block_size
    width = max((row.context - 1) // block_size - row.low // block_size + 1 for row in rows)
    columns = first + torch.arange(width, device=device)
    ids = tables[index[:, None], columns.clamp_(max=tables.shape[1] - 1)]
    positions = first * block_size + torch.arange(width * block_size, device=device)
    visible = (positions < context) & (positions >= low)
    heads = torch.arange(num_kv_heads, device=device)[:, None]
    hidden = (~visible)[:, None].expand(-1, num_kv_heads, -1)
    return CacheRead(
        blocks=(ids[:, None] * num_kv_heads + heads).flatten(),
        hidden=hidden.reshape(-1).nonzero().flatten(),
        visible=visible,
        first=tuple(row.low // block_size * block_size for row in rows),
    )


def _decode(
    rows: list[_Row], cache: CacheRead, num_kv_heads: int, dtype: torch.dtype, whole: bool
) -> DecodeBatch:
    device = cache.visible.device
    bias = torch.zeros(cache.visible.shape, dtype=dtype, device=device)
    bias.masked_fill_(~cache.visible, float("-inf"))
    return DecodeBatch(
        tokens=None if whole else torch.tensor([row.token for row in rows], device=device),
        cache=cache,
        bias=bias[:, None].expand(-1, num_kv_heads, -1).reshape(-1, 1, bias.shape[1]),
    )


def _prefill(row: _Row, cache: CacheRead, window: int | None) -> PrefillRow:
    """Tiles of one chunk; positions count from the first gathered token."""
    (first,) = cache.first
    device = cache.visible.device
    start = row.context - row.queries - first
    tiles = []
    for offset in range(0, row.queries, TILE):
        count = min(TILE, row.queries - offset)
        query = torch.arange(start + offset, start + offset + count, device=device)[:, None]
        high = start + offset + count
        low = max(row.low - first, 0 if window is None else start + offset + 1 - window)
        columns = torch.arange(low, high, device=device)
        future = columns[-count:] > query
        past = None if window is None else columns[:count] <= query - window
        tiles.append(
            Tile(
                start=row.token + offset,
                stop=row.token + offset + count,
                low=low,
                high=high,
                future=future[:, None],
                past=None if past is None else past[:, None],
            )
        )
    return PrefillRow(cache, tuple(tiles))
