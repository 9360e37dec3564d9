"""Latent attention on a CPU whose bits depend on nothing but the query and what it sees.

A matrix product may take its sums in another order where its shape is another, where its operands are aligned otherwise, or
where it stands alone in a batch. So every product here has one shape: one
query's heads against `POSITIONS` consecutive positions from a multiple of that number on, their elements filled up to whole cache
lines; and there are two products at least. The pieces are joined in the order
of their positions with a running maximum (Milakov and Gimelshein 2018); a piece in which a query sees nothing changes none of its bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

POSITIONS: Final = 128
MOST_QUERIES: Final = 64
"""Queries that are computed at once, which bounds the scratch memory."""
LINE: Final = 32
"""Elements that fill whole cache lines."""


class InvariantPlan(NamedTuple):
    """One step's queries: where each stands, int64 [T], and the block table of its row, [T, max_blocks]."""

    positions: Tensor
    tables: Tensor


def plan_invariant(
    block_tables: Tensor, query_lengths: Sequence[int], context_lengths: Sequence[int]
) -> InvariantPlan:
    """Lay out one step's attention; the arguments are those of `plan_latent_attention`."""
    positions = [
        torch.arange(context - count, context)
        for count, context in zip(query_lengths, context_lengths, strict=True)
    ]
    counts = torch.tensor(list(query_lengths), dtype=torch.int64)
    return InvariantPlan(torch.cat(positions), block_tables.repeat_interleave(counts, dim=0).long())


def invariant_latent_attention(
    query: Tensor, entries: Tensor, plan: InvariantPlan, *, latent_dim: int, scale: float
) -> Tensor:
    """Arguments and result are those of `latent_attention`."""
    parts = []
    if len(query) % MOST_QUERIES == 1:
        again = torch.tensor([*range(len(query)), len(query) - 1])
        twice = InvariantPlan(plan.positions[again], plan.tables[again])
        return invariant_latent_attention(query[again], entries, twice, latent_dim=latent_dim, scale=scale)[
            :-1
        ]
    query = F.pad(query, (0, -query.shape[2] % LINE))
    for start in range(0, len(query), MOST_QUERIES):
        queries = slice(start, start + MOST_QUERIES)
        some = InvariantPlan(plan.positions[queries], plan.tables[queries])
        parts.append(_attend(query[queries], entries, some, latent_dim, scale))
    return torch.cat(parts)


def _attend(query: Tensor, entries: Tensor, plan: InvariantPlan, latent_dim: int, scale: float) -> Tensor:
    count, heads, _ = query.shape
    block_size = entries.shape[1]
    maximum = query.new_full((count, heads, 1), -torch.inf, dtype=torch.float32)
    total = torch.zeros_like(maximum)
    attended = query.new_zeros(query.shape, dtype=torch.float32)
    for start in range(0, int(plan.positions.max()) + 1, POSITIONS):
        places = torch.arange(start, start + POSITIONS)
        columns = torch.div(places, block_size, rounding_mode="floor").clamp_(max=plan.tables.shape[1] - 1)
        hidden = (places > plan.positions[:, None])[..., None]
        seen = entries[plan.tables[:, columns], places % block_size].masked_fill_(hidden, 0)
        seen = F.pad(seen, (0, -seen.shape[2] % LINE))
        scores = torch.bmm(query, seen.transpose(1, 2)).float().mul_(scale)
        scores.masked_fill_(hidden.transpose(1, 2), -torch.inf)
        newest = torch.maximum(maximum, scores.amax(-1, keepdim=True))
        weights, kept = (scores - newest).exp_(), (maximum - newest).exp_()
        total = total * kept + weights.sum(-1, keepdim=True)
        attended = attended * kept + torch.bmm(weights.to(seen.dtype), seen).float()
        maximum = newest
    return (attended / total).to(query.dtype)[..., :latent_dim]
