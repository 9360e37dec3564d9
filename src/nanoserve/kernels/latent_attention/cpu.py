"""Latent attention on a CPU, one row at a time: its entries are gathered once, and all heads of some queries are one matrix.

What all layers share in a step is laid out once (`plan_latent_attention`). Scores are in the cache's dtype, the softmax
is computed in float32, as in transformers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from nanoserve.kernels.heads import Scoring
from nanoserve.kernels.invariant_attention import InvariantPlan, invariant_attention, plan_invariant_attention

TILE_ROWS = 1024
"""Pairs of query and head that are attended to together, which bounds the scratch memory: this many rows of scores."""


class PlannedRow(NamedTuple):
    """One row of a step.

    Attributes:
        token: the first of its queries in the step; `queries`, how many they are.
        context: tokens of the row, queries included.
        blocks: int64, the blocks that hold them.
    """

    token: int
    queries: int
    context: int
    blocks: Tensor


def plan_latent_attention(
    block_tables: Tensor, query_lengths: Sequence[int], context_lengths: Sequence[int], *, block_size: int
) -> tuple[PlannedRow, ...]:
    """Lay out one step's attention.

    Args:
        block_tables: [B, max_blocks], the blocks of each row; entries of blocks that hold no token are never read.
        query_lengths: B numbers, how many query tokens each row has; the queries are its last tokens.
        context_lengths: B numbers, how many tokens each row has, queries included.
        block_size: tokens per block.
    """
    rows, token = [], 0
    for table, queries, context in zip(block_tables, query_lengths, context_lengths, strict=True):
        if queries:
            rows.append(PlannedRow(token, queries, context, table[: -(-context // block_size)].long()))
        token += queries
    return tuple(rows)


def latent_attention(
    query: Tensor, entries: Tensor, plan: tuple[PlannedRow, ...], *, latent_dim: int, scale: float
) -> Tensor:
    """Attend to each query's own row up to its own position: softmax(scale * q e^T) e[:, :latent_dim].

    No element outside of the visible positions influences the output, not even NaN.

    Args:
        query: [T, num_heads, latent_dim + rope_dim], absorbed, all rows' queries one after the other.
        entries: [blocks, block_size, latent_dim + rope_dim]; the queries' own are already written.
        plan: from `plan_latent_attention`.
        latent_dim: how many of an entry's first elements are its latent.
        scale: what scores are multiplied with.

    Returns:
        [T, num_heads, latent_dim] in the dtype of `query`.
    """
    output = query.new_empty(*query.shape[:2], latent_dim)
    most = max(1, TILE_ROWS // query.shape[1])
    for row in plan:
        seen = entries.index_select(0, row.blocks).flatten(0, 1)[: row.context]
        for start in range(0, row.queries, most):
            stop = min(start + most, row.queries)
            tokens, high = slice(row.token + start, row.token + stop), row.context - row.queries + stop
            output[tokens] = _attend(query[tokens], seen[:high], latent_dim, scale)
    return output


def _attend(query: Tensor, seen: Tensor, latent_dim: int, scale: float) -> Tensor:
    """Queries [N, num_heads, width] over entries [context, width], of which the last N are the queries' own."""
    count, heads, width = query.shape
    scores = torch.mm(query.reshape(-1, width) * scale, seen.T).view(count, heads, -1)
    if count > 1:
        future = torch.ones(count, count, dtype=torch.bool, device=query.device).triu_(1)
        scores[..., -count:].masked_fill_(future[:, None], -torch.inf)
    weights = scores.softmax(dim=-1).flatten(0, 1)
    return torch.mm(weights, seen[:, :latent_dim]).view(count, heads, latent_dim)


def attend_to_part(
    query: Tensor,
    entries: Tensor,
    plan: tuple[PlannedRow, ...],
    *,
    latent_dim: int,
    scale: float,
    part: slice,
) -> Tensor:
    """As `latent_attention`, over the entries of every `part.step`th position from `part.start` on, which alone are in the blocks.

    Returns:
        float32 [T, num_heads, latent_dim + 1]: what is attended, and behind it the logarithm of the sum of the scores'
        exponentials; zeros and minus infinity where a query sees none of these entries. `merge_parts` needs both.
    """
    found = torch.zeros(*query.shape[:2], latent_dim + 1)
    found[..., latent_dim] = -torch.inf
    most = max(1, TILE_ROWS // query.shape[1])
    for row in plan:
        seen = entries.index_select(0, row.blocks).flatten(0, 1)
        for start in range(0, row.queries, most):
            count = min(most, row.queries - start)
            position = torch.arange(count) + row.context - row.queries + start
            high = len(range(int(position[-1]) + 1)[part])
            tokens = slice(row.token + start, row.token + start + count)
            hidden = torch.arange(high) * part.step + part.start > position[:, None]
            scores = (torch.einsum("nhw,cw->nhc", query[tokens] * scale, seen[:high])).float()
            scores.masked_fill_(hidden[:, None], -torch.inf)
            logs = scores.logsumexp(dim=-1, keepdim=True)
            weights = (scores - logs.clamp(min=torch.finfo(torch.float32).min)).exp()
            found[tokens, :, :latent_dim] = weights @ seen[:high, :latent_dim].float()
            found[tokens, :, latent_dim:] = logs
    return found


def merge_parts(parts: Tensor) -> Tensor:
    """Merge what several have attended to apart, [holders, T, num_heads, latent_dim + 1], to float32 [T, num_heads, latent_dim]."""
    return (parts[..., -1:].softmax(dim=0) * parts[..., :-1]).sum(0)


LINE: Final = 32
"""Elements that fill whole cache lines: where operands are aligned otherwise, products may sum in another order."""
plan_invariant: Final = functools.partial(plan_invariant_attention, queries=1)
"""As `plan_latent_attention`: a query's heads read the same positions, so they are one product."""


def invariant_latent_attention(
    query: Tensor, entries: Tensor, plan: InvariantPlan, *, latent_dim: int, scale: float
) -> Tensor:
    """As `latent_attention`, with bits that depend only on the query and the positions that it reads."""
    query, entries = F.pad(query, (0, -query.shape[2] % LINE)), entries[:, None]
    return invariant_attention(query, entries, entries, plan, Scoring(scale))[..., :latent_dim]


TOKENS: Final = 16
"""Tokens of the products whose shape never changes."""


def head_linear(x: Tensor, weight: Tensor) -> Tensor:
    """X [T, heads, K] times weight [heads, K, N], any strides: [T, heads, N]."""
    return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)


def fixed_head_linear(x: Tensor, weight: Tensor) -> Tensor:
    """A head's product of one shape, so that a token's bits do not depend on how many tokens there are."""
    tokens = len(x)
    padded = F.pad(x, (0, 0, 0, 0, 0, -tokens % TOKENS))
    pieces = [head_linear(piece.contiguous(), weight) for piece in torch.split(padded, TOKENS)]
    return torch.cat(pieces)[:tokens]
