"""The experts that tokens go through, recorded where they are chosen and kept beside the keys and values of the same tokens.

Each layer's router leaves its choice in a part of one buffer. At the end of a step that goes, in one copy, where the cache group that
keeps all tokens has their blocks; so a prefix that is found again has its experts, too, which a trainer needs to pass its tokens
through the same ones ("rollout routing replay", Ma et al. 2025, arXiv 2510.11370). Rows that ask get those of a step with its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.devices import upload
from nanoserve.adapters.pytorch.kv_store import KVStore
from nanoserve.adapters.pytorch.layers.experts import Experts
from nanoserve.adapters.pytorch.mixers.gpu_mixer import StepArena
from nanoserve.adapters.pytorch.models import DecoderModel
from nanoserve.adapters.pytorch.step_inputs import Span
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.step import AdmittedRow, RoutedExperts, StepPlan

Fetch = Callable[[Tensor], Any]
"""Starts to bring a tensor to the host; the result's `wait` returns it there."""


@attrs.frozen(eq=False)
class Routed:
    """Experts of a row's tokens from position `first` on, [tokens, layers, experts of one], on their way to the host in parts."""

    row: int
    first: int
    parts: tuple[tuple[Any, slice], ...]

    def read(self) -> RoutedExperts:
        """Wait for them."""
        found = [
            coming.wait()[part].contiguous().view(torch.uint8).numpy().tobytes()
            for coming, part in self.parts
        ]
        return RoutedExperts(self.first, b"".join(found))


class ExpertRecords:
    """The records of one runner's model and cache.

    Attributes:
        group: the cache group beside whose blocks they are kept.
    """

    @classmethod
    def for_sizes(
        cls, model: DecoderModel, kv: KVStore, sizes: EngineSizes, most_tokens: int
    ) -> ExpertRecords | None:
        """None if nothing is recorded."""
        return cls(model, kv, sizes, most_tokens) if kv.routed_experts is not None else None

    def __init__(self, model: DecoderModel, kv: KVStore, sizes: EngineSizes, most_tokens: int) -> None:
        """The routers of `model` write into a buffer for this many tokens from now on."""
        assert kv.routed_experts is not None
        layers, self._top, _ = sizes.routed_experts
        group = model.spec.complete_group
        assert group is not None
        self._layer = model.spec.cache_groups[group].layers[0]
        self.group, self._block_size, device = group, sizes.block_size, kv.routed_experts.device
        self._kept = kv.routed_experts.view(-1, layers, self._top)
        routers = [
            (layer, part)
            for layer, parts in enumerate(model.layers)
            for part in parts
            if isinstance(part, Experts)
        ]
        slots = max(part.routing.slots for _, part in routers)
        self._chosen = torch.zeros(len(routers), most_tokens * slots, dtype=torch.int32, device=device)
        for (_, part), buffer in zip(routers, self._chosen, strict=True):
            part.records[:] = [buffer]
        self._slots = slots
        self._layers = torch.tensor([layer for layer, _ in routers], device=device)
        self._asked: dict[int, list[int]] = {}

    def apply(self, plan: StepPlan) -> None:
        """Take note of the rows that ask, and of the prefixes that were found for them."""
        for row in plan.released:
            self._asked.pop(row, None)
        for admitted in plan.admitted:
            self._asked.pop(admitted.row, None)
            if admitted.routed_experts:
                self._asked[admitted.row] = self._prefix(admitted)

    def keep(self, slots: Tensor) -> Self:
        """Keep the choices of a step's tokens, [T], in their slots of the cache group, `block * block_size + offset`; may be captured."""
        self._kept.index_copy_(0, slots, self._of_step(len(slots)))
        return self

    @property
    def is_asked(self) -> bool:
        """True if any row asks."""
        return bool(self._asked)

    def keep_of(self, arena: StepArena, token_rows: Tensor, places: Tensor) -> None:
        """As `keep`: tokens of chunks that are described in an arena, and the newest ones of rows."""
        rows = torch.cat((token_rows, places)).long()
        positions = torch.cat((arena.positions[: len(token_rows)], arena.lengths[places.long()] - 1)).long()
        columns = positions.div(self._block_size, rounding_mode="floor")
        blocks = arena.block_tables[self._layer][rows, columns]
        self.keep(blocks * self._block_size + positions % self._block_size)

    def report(self, spans: Sequence[Span], fetch: Fetch) -> tuple[Routed, ...]:
        """The experts of the newest step's tokens, which are those of `spans` in this order, for the rows that ask."""
        if not any(row in self._asked for row, _, _ in spans):
            return ()
        coming = fetch(self._of_step(sum(length for _, _, length in spans)))
        found, place = [], 0
        for row, start, length in spans:
            prefix = self._asked.get(row)
            parts = [(coming, slice(place, place + length))]
            place += length
            if prefix:
                self._asked[row] = []
                slots = upload(prefix, torch.int64, self._kept.device)
                parts.insert(0, (fetch(self._kept.index_select(0, slots)), slice(None)))
            if prefix is not None:
                found.append(Routed(row, start - len(prefix), tuple(parts)))
        return tuple(found)

    def _of_step(self, tokens: int) -> Tensor:
        """Choices of the first tokens, [tokens, layers, experts of one], in memory of its own."""
        chosen = self._chosen[:, : tokens * self._slots].view(-1, tokens, self._slots)[..., : self._top]
        found = self._kept.new_zeros(tokens, *self._kept.shape[1:])
        return found.index_copy_(1, self._layers, chosen.transpose(0, 1).to(found.dtype))

    def _prefix(self, admitted: AdmittedRow) -> list[int]:
        size, table = self._block_size, admitted.block_tables[self.group]
        return [table[place // size] * size + place % size for place in range(admitted.num_computed_tokens)]


@attrs.frozen(eq=False)
class Here:
    """A tensor that is on the host already."""

    tensor: Tensor

    def wait(self) -> Tensor:
        return self.tensor


def reports(routed: Sequence[Routed]) -> dict[int, RoutedExperts]:
    """Results say them so, by row."""
    return {each.row: each.read() for each in routed}
