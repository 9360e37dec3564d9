"""Deltas that adapters add to the products of one step on a CPU."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.linear import Linear, in_fixed_rows
from nanoserve.adapters.pytorch.lora.layout import LoraWeights, Site
from nanoserve.adapters.pytorch.lora.store import HostLoras
from nanoserve.ports.step import Chunk, LoraLoad


@attrs.frozen(eq=False)
class Deltas:
    """Fulfils `models.decoder.LowRank`.

    Attributes:
        groups: for each adapter the tokens that have it, int64, and its numbers.
        invariant: whether the bits of a token's delta depend on no other token.
    """

    loras: HostLoras
    groups: Sequence[tuple[Tensor, LoraWeights]]
    invariant: bool = False

    def add(self, x: Tensor, linear: Linear, product: Tensor, /) -> None:
        site = self.loras.layout.sites[linear]
        for tokens, weights in self.groups:
            delta = functools.partial(_delta, site, weights)
            ours = x[tokens]
            product.index_add_(0, tokens, in_fixed_rows(delta, ours) if self.invariant else delta(ours))


def _delta(site: Site, weights: LoraWeights, x: Tensor) -> Tensor:
    """[T, in_features] to [T, out_features]."""
    a, b = weights.at(site)
    shrunk = x @ a.flatten(0, 1).t()
    parts = torch.split(shrunk, weights.rank, dim=1)
    return torch.cat([parts[part] @ b[first:last].t() for first, last, part in site.runs], dim=1)


class RowLoras:
    """Which adapter each row has, by the slots of the plans; on a CPU a slot is a reference to numbers in the same memory.

    Attributes:
        rows: the slot of each row that has one.
        invariant: as in `Deltas`, of the next step.
    """

    def __init__(self, loras: HostLoras) -> None:
        self._loras, self.invariant = loras, False
        self._slots: dict[int, LoraWeights] = {}
        self.rows: dict[int, int] = {}

    def load(self, loads: Sequence[LoraLoad]) -> None:
        """Fill slots."""
        self._slots.update({each.slot: self._loras[each.digest] for each in loads})

    def of_step(self, chunks: Iterable[Chunk], decoding: Iterable[tuple[int, int]]) -> Deltas | None:
        """The deltas of a step of chunks and then of rows `decoding` so many tokens each; None if none of its rows has an adapter."""
        if not self.rows:
            return None
        owners = [*((each.row, each.length) for each in chunks), *decoding]
        starts = itertools.accumulate((length for _, length in owners), initial=0)
        tokens: dict[int, list[Tensor]] = {}
        for (row, length), start in zip(owners, starts, strict=False):
            if row in self.rows:
                tokens.setdefault(self.rows[row], []).append(torch.arange(start, start + length))
        if not tokens:
            return None
        groups = [(torch.cat(each), self._slots[slot]) for slot, each in tokens.items()]
        return Deltas(self._loras, groups, self.invariant)
