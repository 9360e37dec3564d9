"""Attention over blocks on a CPU whose bits depend only on the query and the positions that it reads.

A matrix product may take its sums in another order where its shape is another. So here every product has one shape: a tile of
some consecutive queries of a row, filled up with zeros, against `POSITIONS` consecutive positions from a multiple of
that number on. The pieces are joined in the order of their positions with a running maximum (Milakov and Gimelshein 2018);
a piece in which a query sees nothing changes none of its bits. A product that would stand alone in a batch, where threads share it,
is computed twice. So neither other rows nor the cuts of chunks can matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from nanoserve.kernels.heads import Scoring

QUERIES: Final = 4
"""Queries of a tile, where heads share keys."""
POSITIONS: Final = 128
MOST_TILES: Final = 64
"""Tiles that are computed at once, which bounds the scratch memory."""


class InvariantPlan(NamedTuple):
    """One step's tiles over one cache group; N of them.

    Attributes:
        tokens: int64 [N, queries], which tokens of the step the queries are; T, one behind the last, for zeros.
        first, last: int64 [N, queries], the positions that each query sees; `last` is -1 for zeros.
        tables: int64 [N, blocks], the block tables of the tiles' rows.
    """

    tokens: Tensor
    first: Tensor
    last: Tensor
    tables: Tensor


def plan_invariant_attention(
    block_tables: Tensor,
    query_lengths: Sequence[int],
    context_lengths: Sequence[int],
    *,
    window: int | None = None,
    queries: int = QUERIES,
) -> InvariantPlan:
    """Lay out one step's attention over one cache group, in tiles of so many `queries`; the other arguments are those of `plan_attention`."""
    num_tokens, token = sum(query_lengths), 0
    tokens, last, rows = [], [], []
    for row, (count, context) in enumerate(zip(query_lengths, context_lengths, strict=True)):
        for offset in range(0, count, queries):
            places = range(offset, offset + queries)
            tokens.append([token + place if place < count else num_tokens for place in places])
            last.append([context - count + place if place < count else -1 for place in places])
            rows.append(row)
        token += count
    last_seen = torch.tensor(last).view(-1, queries)
    first_seen = (last_seen + 1 - window).clamp_(min=0) if window is not None else torch.zeros_like(last_seen)
    return InvariantPlan(
        torch.tensor(tokens).view(-1, queries), first_seen, last_seen, block_tables[torch.tensor(rows)]
    )


def invariant_attention(
    query: Tensor, keys: Tensor, values: Tensor, plan: InvariantPlan, scoring: Scoring
) -> Tensor:
    """softmax(scale * q k^T) v over the positions that each query reads; arguments and result are those of `paged_attention`.

    Queries may be wider than keys and values, which then end in zeros.
    """
    if keys.shape[1] == 1 and len(plan.tokens) % MOST_TILES == 1:
        plan = InvariantPlan(*(torch.cat((part, part[-1:])) for part in plan))
    padded = torch.cat((query, query.new_zeros(1, *query.shape[1:])))
    output = torch.empty_like(padded)
    for start in range(0, len(plan.tokens), MOST_TILES):
        tiles = InvariantPlan(*(part[start : start + MOST_TILES] for part in plan))
        output[tiles.tokens] = _attend(padded[tiles.tokens], keys, values, tiles, scoring)
    return output[:-1]


def _attend(query: Tensor, keys: Tensor, values: Tensor, tiles: InvariantPlan, scoring: Scoring) -> Tensor:
    """The tiles' queries [N, queries, num_heads, head_dim] to the same shape."""
    count, queries, num_heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    grouped = (
        query.view(count, queries, kv_heads, -1, head_dim)
        .transpose(1, 2)
        .reshape(count * kv_heads, -1, head_dim)
    )
    group = num_heads // kv_heads
    maximum = query.new_full((count * kv_heads, queries * group, 1), -torch.inf, dtype=torch.float32)
    total = torch.zeros_like(maximum)
    if scoring.sinks is not None:
        maximum = scoring.sinks.float().view(kv_heads, 1, group).repeat(count, queries, 1).view_as(maximum)
        total = torch.ones_like(maximum)
    attended = query.new_zeros(grouped.shape, dtype=torch.float32)
    for key, value, hidden in _pieces((keys, values), tiles, group, head_dim, query.dtype):
        scores = torch.bmm(grouped, key.transpose(1, 2)).float().mul_(scoring.scale)
        if scoring.soft_cap is not None:
            scores.div_(scoring.soft_cap).tanh_().mul_(scoring.soft_cap)
        scores.masked_fill_(hidden, -torch.inf)
        newest = torch.maximum(maximum, scores.amax(-1, keepdim=True))
        finite = newest.masked_fill(newest == -torch.inf, 0)
        weights, kept = (scores - finite).exp_(), (maximum - finite).exp_()
        total = total * kept + weights.sum(-1, keepdim=True)
        attended = attended * kept + torch.bmm(weights.to(value.dtype), value).float()
        maximum = newest
    attended /= total
    shaped = attended.view(count, kv_heads, queries, group, head_dim).transpose(1, 2)
    return shaped.reshape(query.shape).to(query.dtype)


def _pieces(
    pools: tuple[Tensor, Tensor], tiles: InvariantPlan, group: int, width: int, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Keys and values [N * kv_heads, POSITIONS, width] of one piece after the other, and what each query may not see.

    What no query of a tile sees is zero, never NaN. Pieces in which no query sees anything are left out.
    """
    _, kv_heads, block_size, head_dim = pools[0].shape
    real = tiles.last >= 0
    lowest = int(tiles.first[real].min()) // POSITIONS * POSITIONS
    for start in range(lowest, int(tiles.last.max()) + 1, POSITIONS):
        positions = torch.arange(start, start + POSITIONS)
        columns = torch.div(positions, block_size, rounding_mode="floor").clamp_(
            max=tiles.tables.shape[1] - 1
        )
        blocks, offsets = tiles.tables[:, columns], positions % block_size
        seen = (positions >= tiles.first[..., None]) & (positions <= tiles.last[..., None])
        unseen = ~seen.any(1)[:, :, None, None]
        key, value = (
            F.pad(
                each.transpose(1, 2)[blocks, offsets]
                .to(dtype)
                .masked_fill_(unseen, 0)
                .transpose(1, 2)
                .reshape(-1, POSITIONS, head_dim),
                (0, width - head_dim),
            )
            for each in pools
        )
        hidden = ~seen[:, None, :, None].expand(-1, kv_heads, -1, group, -1)
        yield key, value, hidden.reshape(len(key), -1, POSITIONS)
