"""Projections of chunks' tokens and of newest ones, into empty pools of NaN."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from nanoserve.kernels.paged import HeadTransform, PagedCache
from nanoserve.kernels.rope_and_cache import reference
from nanoserve.kernels.rope_and_cache.launch import rope_and_cache
from nanoserve.kernels.trial import Comparison, Heads, Inputs, paged_cache

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


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """Projections of tokens (row, position), and pools and queries of NaN."""

    qkv: Tensor
    query: Tensor
    cache: PagedCache
    transform: HeadTransform
    token_rows: Tensor
    positions: Tensor
    name: str

    @classmethod
    def of(cls, inputs: Inputs, heads: Heads, tokens: Sequence[tuple[int, int]]) -> Case:
        """Every row is as long as its last token asks for."""
        ends = [1] * (1 + max(row for row, _ in tokens))
        for row, position in tokens:
            ends[row] = max(ends[row], position + 1)
        return cls(
            qkv=heads.projections(inputs, len(tokens)),
            query=inputs.poisoned(len(tokens), heads.num_heads * heads.head_dim),
            cache=paged_cache(inputs, heads, [(0, end) for end in ends], unwritten=max(ends)),
            transform=heads.transform(inputs, max(ends)),
            token_rows=inputs.these([row for row, _ in tokens]),
            positions=inputs.these([position for _, position in tokens]),
            name=f"{len(tokens)} tokens, {heads}",
        )

    def run(self, *, newest: bool = False) -> None:
        """Write queries, keys and values; `newest`: where each token is the newest of its row."""
        positions = self.positions
        if newest:
            positions = torch.full_like(self.cache.tables[:, 0], UNUSED_LENGTH)
            positions[self.token_rows.long()] = self.positions + 1
        step: dict[str, Any] = {"token_rows": self.token_rows, "positions": positions, "newest": newest}
        rope_and_cache(self.qkv, self.query, self.cache, self.transform, **step)

    def exact(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as by definition."""
        head_dim = self.cache.keys.shape[3]
        return reference.rope_and_cache(
            self.qkv,
            num_heads=self.query.shape[1] // head_dim,
            head_dim=head_dim,
            positions=self.positions,
            transform=self.transform,
        )

    def compare(self) -> Iterator[Comparison]:
        """What was written, and how many elements of the pools were."""
        query, *wanted = self.exact()
        yield Comparison(f"queries of {self.name}", self.query, query.flatten(1))
        for name, pool, right in zip(("keys", "values"), self.cache[:2], wanted, strict=True):
            got = reference.read_cache(pool, self.token_rows, self.positions, self.cache.tables)
            yield Comparison(f"{name} of {self.name}", got, right, exact=name == "values")
            written = (~pool.isnan()).sum()
            size = torch.full_like(written, got.numel())
            yield Comparison(f"other {name} of {self.name}", written, size, exact=True)


def check_rope_and_cache(inputs: Inputs, heads: Heads) -> Iterator[Comparison]:
    """Tokens of chunks."""
    case = Case.of(inputs, heads, CHUNKS)
    case.run()
    return case.compare()


def check_rope_and_cache_newest(inputs: Inputs, heads: Heads) -> Iterator[Comparison]:
    """The newest token of each row."""
    case = Case.of(inputs, heads, NEWEST)
    case.run(newest=True)
    return case.compare()
