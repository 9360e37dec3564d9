"""Paged attention by batched matrix products over gathered blocks, which is fast on a CPU.

What all layers of one cache group share in a step is laid out once (`plan_attention`): which blocks each row reads and
which positions it may see. Rows with one query (decoding) are batched with others of similar length; a row with more
queries (a prefill chunk) stands alone and is cut into tiles of queries, so that most of what the causal mask hides is
never computed.

Gathering whole blocks costs little beside the products, which then run at the speed of oneDNN; torch's fused
attention takes two to three times as long for one query per row. Scores are in the cache's dtype and the softmax
is computed in float32, as in transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nanoserve.kernels.heads import Scoring

TILE = 64
"""Queries of a prefill chunk that are attended to together; measured best of 32 to 512 on one core and on two."""
MAX_PADDING = 1.25
"""The most blocks that a batch of decoding rows may read, as a multiple of its own, because it is as wide as its longest row."""
MAX_BATCH_BLOCKS = 2048
"""Blocks that a batch of decoding rows reads at most (more than one row only), which bounds the scratch memory."""

KEYS_SECOND = 64
"""The largest head in float32 whose products have keys as their second factor; others, and those in bfloat16, have them as the first, where
oneDNN takes them as they lie: in bfloat16 that makes attention twice as fast."""


class BlockLayout(NamedTuple):
    """How a layer's keys, or its values, lie in memory.

    Attributes:
        num_kv_heads: heads of the cache.
        block_size: tokens per block.
        block_stride: how far apart blocks are, in heads of one block.
    """

    num_kv_heads: int
    block_size: int
    block_stride: int


class CacheRead(NamedTuple):
    """The blocks that B rows read, N each.

    Attributes:
        blocks: int64 [B * num_kv_heads * N], indices into the heads of all blocks, one behind the other, see `gather`.
        hidden: int64, which of the B * num_kv_heads * N * block_size gathered positions no query may see.
        visible: bool [B, N * block_size], the positions that some query of the row sees.
        first: position of each row's first gathered token.
    """

    blocks: Tensor
    hidden: Tensor
    visible: Tensor
    first: tuple[int, ...]


class DecodeBatch(NamedTuple):
    """Rows with one query each: their tokens (None for all, in order), the positions that they read, the mask to add."""

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
    """A row with several queries: the positions that it reads, and the tiles of its queries."""

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


def plan_attention(
    block_tables: Tensor,
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    layout: BlockLayout,
    *,
    window: int | None,
    dtype: torch.dtype,
) -> AttentionPlan:
    """Lay out one step's attention over one cache group.

    Args:
        block_tables: int64 [B, max_blocks]; the entries of tokens that no query sees are never read.
        query_lengths: B numbers, how many query tokens each row has; the queries are its last tokens.
        context_lengths: B numbers, how many tokens each row has, queries included.
        layout: of the cache.
        window: None, or how many tokens a query sees at most, itself included.
        dtype: of queries.
    """
    rows = list(rows_of(query_lengths, context_lengths, window))
    single = [row for row in rows if row.queries == 1]
    batches = list(_batches(single, layout.block_size))
    whole = len(batches) == 1 and len(single) == len(rows)

    def read(batch: list[_Row]) -> CacheRead:
        return read_blocks(block_tables, batch, layout)

    return AttentionPlan(
        decode=tuple(
            _lay_out_decoding(batch, read(batch), layout.num_kv_heads, dtype, whole) for batch in batches
        ),
        prefill=tuple(_lay_out_chunk(row, read([row]), window) for row in rows if row.queries > 1),
    )


def paged_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: AttentionPlan,
    scoring: Scoring,
) -> Tensor:
    """Attend to the visible tokens of each query's own row: softmax(scale * q k^T) v.

    No element outside of the visible positions influences the output, not even NaN.

    Args:
        query: [T, num_heads, head_dim], all rows' queries one after the other. Query heads
            [i * G, (i + 1) * G) share KV head i, with G = num_heads / num_kv_heads.
        keys: [blocks, num_kv_heads, block_size, head_dim], in the dtype of `query` or a narrower one; each block contiguous, and
            so many heads from one to the next as the plan says. The queries' own keys are already written.
        values: like `keys`.
        plan: from `plan_attention`.
        scoring: how products become weights.

    Returns:
        [T, num_heads, head_dim] in the dtype of `query`.
    """
    if len(plan.decode) == 1 and plan.decode[0].tokens is None:
        return _attend_decoding(query, keys, values, plan.decode[0], scoring)
    output = torch.empty_like(query)
    for batch in plan.decode:
        assert batch.tokens is not None
        output[batch.tokens] = _attend_decoding(query[batch.tokens], keys, values, batch, scoring)
    for row in plan.prefill:
        key, value = (gather(each, row.cache, query.dtype) for each in (keys, values))
        for tile in row.tiles:
            output[tile.start : tile.stop] = _attend_tile(query, key, value, tile, scoring)
    return output


def rows_of(queries: Sequence[int], contexts: Sequence[int], window: int | None) -> Iterator[_Row]:
    """The rows of a step with so many queries each."""
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


def read_blocks(tables: Tensor, rows: list[_Row], layout: BlockLayout, room: int = 0) -> CacheRead:
    """The blocks of rows; with `room` so many positions of each, those behind its end hidden."""
    num_kv_heads, block_size, block_stride = layout
    device = tables.device
    index = torch.tensor([row.row for row in rows], device=device)
    low = torch.tensor([row.low for row in rows], device=device)[:, None]
    context = torch.tensor([row.context for row in rows], device=device)[:, None]
    first = low // block_size
    spans = ((row.context - 1) // block_size - row.low // block_size + 1 for row in rows)
    width = room // block_size or max(spans)
    columns = first + torch.arange(width, device=device)
    ids = tables[index[:, None], columns.clamp_(max=tables.shape[1] - 1)]
    positions = first * block_size + torch.arange(width * block_size, device=device)
    visible = (positions < context) & (positions >= low)
    heads = torch.arange(num_kv_heads, device=device)[:, None]
    hidden = (~visible)[:, None].expand(-1, num_kv_heads, -1)
    return CacheRead(
        blocks=(ids[:, None] * block_stride + heads).flatten(),
        hidden=hidden.reshape(-1).nonzero().flatten(),
        visible=visible,
        first=tuple(row.low // block_size * block_size for row in rows),
    )


def _lay_out_decoding(
    rows: list[_Row], cache: CacheRead, num_kv_heads: int, dtype: torch.dtype, whole: bool
) -> DecodeBatch:
    return DecodeBatch(
        tokens=None if whole else torch.tensor([row.token for row in rows], device=cache.visible.device),
        cache=cache,
        bias=decode_bias(cache, num_kv_heads, dtype),
    )


def decode_bias(cache: CacheRead, num_kv_heads: int, dtype: torch.dtype) -> Tensor:
    """The addend of scores of one query per row: 0 where it sees the position, else -inf; [B * num_kv_heads, 1, positions]."""
    bias = torch.zeros(cache.visible.shape, dtype=dtype, device=cache.visible.device)
    bias.masked_fill_(~cache.visible, float("-inf"))
    return bias.repeat_interleave(num_kv_heads, dim=0)[:, None]


def _lay_out_chunk(row: _Row, cache: CacheRead, window: int | None) -> PrefillRow:
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


def gather(cache: Tensor, read: CacheRead, dtype: torch.dtype) -> Tensor:
    """The rows' blocks as [B * num_kv_heads, positions, head_dim] of a dtype; positions that no query reads are zero, never NaN."""
    blocks, num_kv_heads, block_size, head_dim = cache.shape
    # What lies between the blocks is seen as heads too, those of other layers: so the gathering has no gaps to care for.
    count = (blocks - 1) * (cache.stride(0) // cache.stride(1)) + num_kv_heads
    heads = cache.as_strided((count, block_size, head_dim), cache.stride()[1:])
    gathered = heads.index_select(0, read.blocks).to(dtype)
    gathered.view(-1, head_dim).index_fill_(0, read.hidden, 0)
    return gathered.view(read.visible.shape[0] * num_kv_heads, -1, head_dim)


def _attend_decoding(
    query: Tensor, keys: Tensor, values: Tensor, batch: DecodeBatch, scoring: Scoring
) -> Tensor:
    key, value = (gather(each, batch.cache, query.dtype) for each in (keys, values))
    return attend_rows(query, key, value, batch.bias, scoring)


def attend_rows(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scoring: Scoring) -> Tensor:
    """One query per row [B, num_heads, head_dim] over [B * num_kv_heads, positions, head_dim]; the heads that share a KV head are one product."""
    grouped = query.reshape(key.shape[0], -1, query.shape[2])
    if scoring.soft_cap is not None:
        scores = _cap(torch.bmm(grouped * scoring.scale, key.mT), scoring.soft_cap).add_(bias)
    elif query.dtype == torch.bfloat16 or query.shape[2] > KEYS_SECOND:
        scores = torch.baddbmm(bias.mT, key, grouped.mT, alpha=scoring.scale).mT
    else:
        scores = torch.baddbmm(bias, grouped, key.mT, alpha=scoring.scale)
    if scoring.sinks is None:
        weights = scores.softmax(dim=-1)
    else:
        by_row = scores.view(len(query), -1, *scores.shape[1:])
        weights = _softmax(by_row, scoring.sinks.view(*by_row.shape[1:3], 1)).flatten(0, 1)
    return torch.bmm(weights, value).view(query.shape)


def _attend_tile(query: Tensor, key: Tensor, value: Tensor, tile: Tile, scoring: Scoring) -> Tensor:
    """The tile's queries over their positions, [queries, num_heads, head_dim]."""
    key, value = key[:, tile.low : tile.high], value[:, tile.low : tile.high]
    num_kv_heads, positions, head_dim = key.shape
    count = tile.stop - tile.start
    grouped = query[tile.start : tile.stop].view(count, num_kv_heads, -1, head_dim).transpose(0, 1)
    grouped = grouped.reshape(num_kv_heads, -1, head_dim) * scoring.scale
    scores = torch.bmm(grouped, key.transpose(1, 2)).view(num_kv_heads, count, -1, positions)
    if scoring.soft_cap is not None:
        _cap(scores, scoring.soft_cap)
    scores[..., -count:].masked_fill_(tile.future, float("-inf"))
    if tile.past is not None:
        scores[..., : tile.past.shape[-1]].masked_fill_(tile.past, float("-inf"))
    sinks = None if scoring.sinks is None else scoring.sinks.view(num_kv_heads, 1, -1, 1)
    weights = _softmax(scores, sinks).reshape(num_kv_heads, -1, positions)
    attended = torch.bmm(weights, value).view(num_kv_heads, count, -1, head_dim)
    return attended.transpose(0, 1).reshape(count, -1, head_dim)


def _cap(scores: Tensor, soft_cap: float) -> Tensor:
    """In place."""
    return scores.div_(soft_cap).tanh_().mul_(soft_cap)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Weights of scores [..., positions], beside `sinks` [..., 1] that take part and are dropped."""
    if sinks is None:
        return scores.softmax(dim=-1)
    column = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]
