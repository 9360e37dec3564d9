"""Projections of chunks' tokens and of newest ones, into empty pools of NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from nanoserve.kernels.rope_and_cache import reference
from nanoserve.kernels.rope_and_cache.launch import rope_and_cache, rope_and_cache_newest
from nanoserve.kernels.trial import Comparison, Heads, Inputs, PagedRows

LENGTHS: Final = (3, 70, 1, 33, 17)
"""Tokens of the rows."""
CHUNK_TOKENS: Final = (3, 12, 1, 33, 2)
"""How many of each row's last tokens a chunk computes."""
PLACES: Final = (3, 0, 4, 1, 2)
"""The rows, in the order of a batch."""
CHUNKS: Final = tuple(
    (row, position)
    for row, (length, count) in enumerate(zip(LENGTHS, CHUNK_TOKENS, strict=True))
    for position in range(length - count, length)
)
"""Row and position of each token of the chunks."""
NEWEST: Final = tuple((row, LENGTHS[row] - 1) for row in PLACES)
UNUSED_LENGTH: Final = 10**9
"""The length of rows that no token belongs to."""


def check_rope_and_cache(
    inputs: Inputs, heads: Heads, tokens: Sequence[tuple[int, int]] = CHUNKS, *, newest: bool = False
) -> Iterator[Comparison]:
    """Queries, keys and values of tokens (row, position), and that nothing else is written."""
    lengths = [
        1 + max((place for row, place in tokens if row == each), default=0) for each in range(_rows(tokens))
    ]
    keys, values, tables = PagedRows.of(
        inputs, heads, [(0, length) for length in lengths], unwritten=max(lengths)
    )
    token_rows = inputs.these([row for row, _ in tokens])
    positions = inputs.these([position for _, position in tokens])
    qkv, turns = heads.projections(inputs, len(tokens)), heads.turns(inputs, max(lengths))
    query = inputs.poisoned(len(tokens), heads.num_heads * heads.head_dim)
    step = {"block_tables": tables, **turns}
    if newest:
        known = inputs.these([*lengths, UNUSED_LENGTH])
        rope_and_cache_newest(qkv, query, keys, values, batch_rows=token_rows, lengths=known, **step)
    else:
        rope_and_cache(qkv, query, keys, values, token_rows=token_rows, positions=positions, **step)
    wanted = reference.rope_and_cache(
        qkv, num_heads=heads.num_heads, head_dim=heads.head_dim, positions=positions, **turns
    )
    case = f"{len(tokens)} tokens, {heads}"
    yield Comparison(f"queries of {case}", query, wanted[0].flatten(1))
    for name, pool, right in (("keys", keys, wanted[1]), ("values", values, wanted[2])):
        got = reference.read_cache(pool, token_rows, positions, tables)
        yield Comparison(f"{name} of {case}", got, right, exact=name == "values")
        yield Comparison(f"other {name} of {case}", *_counts(pool, got), exact=True)


def check_rope_and_cache_newest(
    inputs: Inputs, heads: Heads, tokens: Sequence[tuple[int, int]] = NEWEST
) -> Iterator[Comparison]:
    """The same, each token the newest of its row."""
    return check_rope_and_cache(inputs, heads, tokens, newest=True)


def _rows(tokens: Sequence[tuple[int, int]]) -> int:
    return 1 + max(row for row, _ in tokens)


def _counts(pool: Tensor, written: Tensor) -> tuple[Tensor, Tensor]:
    """How many elements of a pool are numbers, and how many should be."""
    count = (~pool.isnan()).sum()
    return count, torch.full_like(count, written.numel())
