"""Projections of chunks' tokens and of newest ones, into an empty pool of NaN."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from nanoserve.kernels.latent import LatentCache
from nanoserve.kernels.latent_cache import reference
from nanoserve.kernels.latent_cache.launch import write_latents
from nanoserve.kernels.trial import Comparison, Inputs, LatentHeads, compare_around_poison, copy_apart

TOKENS: Final = ((3, 12), (3, 13), (3, 16), (0, 0), (4, 69), (1, 31), (2, 32))
"""Row and position of each token of chunks."""
NEWEST: Final = ((3, 32), (0, 2), (4, 16), (1, 69), (2, 0))
UNUSED_LENGTH: Final = 10**9
"""The length of rows that no token belongs to."""


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """Projections of tokens (row, position): both kinds are columns of one tensor, as they come from one product."""

    sizes: LatentHeads
    projected: Tensor
    cache: LatentCache
    norm_weight: Tensor
    rotations: Tensor
    token_rows: Tensor
    positions: Tensor

    @classmethod
    def of(cls, inputs: Inputs, sizes: LatentHeads, tokens: Sequence[tuple[int, int]]) -> Case:
        """Every row is as long as its last token asks for."""
        ends = [1] * (1 + max(row for row, _ in tokens))
        for row, position in tokens:
            ends[row] = max(ends[row], position + 1)
        heads = sizes.num_heads * (sizes.nope_dim + sizes.rope_dim)
        return cls(
            sizes=sizes,
            projected=inputs.normal(len(tokens), heads + sizes.width),
            cache=sizes.cache(inputs, ends, unwritten=max(ends)),
            norm_weight=1 + 0.2 * inputs.normal(sizes.latent_dim),
            rotations=sizes.turns(inputs, max(ends)),
            token_rows=inputs.these([row for row, _ in tokens]),
            positions=inputs.these([position for _, position in tokens]),
        )

    def compare(self, *, newest: bool = False, pdl: bool = False) -> Iterator[Comparison]:
        """What was written and that nothing else was; `newest`: where each token is the newest of its row."""
        sizes, positions = self.sizes, self.positions
        if newest:
            positions = torch.full_like(self.cache.tables[:, 0], UNUSED_LENGTH)
            positions[self.token_rows.long()] = self.positions + 1
        projected, heads = self._parts()
        cache = self.cache._replace(entries=copy_apart(self.cache.entries))
        query = torch.full_like(heads[..., :1], torch.nan).repeat(1, 1, sizes.width)
        step: dict[str, Any] = {"token_rows": self.token_rows, "positions": positions, "newest": newest}
        how: dict[str, Any] = {"norm_weight": self.norm_weight, "eps": sizes.eps, "rotations": self.rotations}
        if pdl:
            torch.cuda.synchronize(query.device)
        write_latents(projected, heads, query[..., sizes.latent_dim :], cache, **step, **how, pdl=pdl)
        turns = self.rotations[self.positions.long()]
        wanted_query = torch.full_like(query, torch.nan, dtype=torch.float32)
        wanted = self.cache.entries.to(torch.float32, copy=True)
        wanted_query[..., sizes.latent_dim :] = reference.rotated_queries(heads, turns)
        blocks = self.cache.tables[self.token_rows.long(), self.positions.long() // sizes.block_size].long()
        wanted[blocks, self.positions.long() % sizes.block_size] = reference.entries(
            projected, self.norm_weight, sizes.eps, turns
        )
        yield from compare_around_poison(f"queries, {sizes}", query, wanted_query)
        yield from compare_around_poison(f"entries, {sizes}", cache.entries, wanted)

    def _parts(self) -> tuple[Tensor, Tensor]:
        sizes = self.sizes
        heads, entries = self.projected[:, : -sizes.width], self.projected[:, -sizes.width :]
        return entries, heads.view(len(heads), sizes.num_heads, -1)


def check_write_latents(inputs: Inputs, sizes: LatentHeads) -> Iterator[Comparison]:
    """Tokens of chunks, then the newest tokens of rows."""
    for pdl in inputs.launches:
        yield from Case.of(inputs, sizes, TOKENS).compare(pdl=pdl)
        yield from Case.of(inputs, sizes, NEWEST).compare(newest=True, pdl=pdl)
