"""Adapters on a GPU: the slots that plans fill, and what they add to the products of a step.

A slot is filled by one copy from pinned host memory, on a stream of its own. The steps that use it come later than the step that fills it, and
wait for the copy alone. Which tokens have which slot is written into the arena when a batch changes, so that a steady step says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena, Shapes
from nanoserve.adapters.pytorch.cuda.batches import EMPTY, Batch
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.adapters.pytorch.lora.layout import Site, padded_rank
from nanoserve.adapters.pytorch.lora.store import HostLoras
from nanoserve.kernels.low_rank.launch import Product, Slots, add_low_rank
from nanoserve.kernels.low_rank.tuning import column_tiles, make_groups, most_groups, split_count
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.step import Chunk, StepPlan

FEW, MANY = 16, 64
"""Tokens of a group, of steps that decode and of prompts."""


def lora_sections(sizes: EngineSizes) -> Shapes:
    """Sections of the arena: the rank in each slot, and which tokens have which; groups of `FEW` are the smallest."""
    if not sizes.max_loras:
        return {}
    shapes: dict[str, tuple[int, ...]] = {"lora_ranks": (sizes.max_loras + 1, 1)}
    for kind, tokens in (("batch", sizes.max_num_seqs), ("chunk", sizes.max_num_batched_tokens)):
        shapes[f"lora_{kind}_groups"] = (most_groups(tokens, sizes.max_loras, FEW), 3)
        shapes[f"lora_{kind}_order"] = (tokens,)
    return shapes


def splits_of(site: Site, *, many: bool, invariant: bool) -> int:
    """Slices of x that a product is computed in, of a few tokens or of many; the same for both where bits are promised."""
    return 1 if many or invariant else split_count(site.in_features)


def tile_of(*, many: bool, invariant: bool) -> int:
    """The most tokens of a group."""
    return MANY if many and not invariant else FEW


class DeviceLoras:
    """The slots of a device.

    Attributes:
        host: adapters in host memory.
        rank: the largest that a slot holds, padded.
    """

    def __init__(self, host: HostLoras, arena: Arena, *, dtype: torch.dtype, invariant: bool) -> None:
        sizes, device = arena.sizes, arena.lengths.device
        self.host, self.rank, self.invariant = host, padded_rank(sizes.max_lora_rank), invariant
        self._arena, self._num_slots = arena, sizes.max_loras
        layout = host.layout
        self._numbers = torch.zeros(sizes.max_loras, self.rank * layout.size, dtype=dtype, device=device)
        tiles = {
            site.runs: torch.tensor(column_tiles(site.runs), dtype=torch.int32, device=device)
            for site in layout.sites.values()
        }
        self.products = {
            linear: Product(site.start_a, site.start_b, site.num_parts, tiles[site.runs])
            for linear, site in layout.sites.items()
        }
        self._most = {False: sizes.max_num_seqs, True: sizes.max_num_batched_tokens}
        widest = max(site.num_parts for site in layout.sites.values()) * self.rank
        slices = max(splits_of(site, many=False, invariant=invariant) for site in layout.sites.values())
        room = widest * max(slices * self._most[False], self._most[True])
        self._shrunk = torch.empty(room, dtype=torch.float32, device=device)
        self._rows: dict[int, int] = {}
        self._batch, self._is_adapted = EMPTY, False
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._filled: Any = None

    def await_slots(self) -> None:
        """Let what is queued from now on see the slots that earlier plans have filled."""
        if self._filled is not None:
            torch.cuda.current_stream().wait_event(self._filled)
            self._filled = None

    def apply(self, plan: StepPlan) -> None:
        """Note the slots of rows, and fill those of the plan; applying a plan twice is applying it once."""
        for row in plan.released:
            self._rows.pop(row, None)
        for admitted in plan.admitted:
            self._rows[admitted.row] = admitted.lora_slot
        for each in plan.lora_loads:
            weights = self.host[each.digest]
            self._arena.write("lora_ranks", (weights.rank,), row=each.slot)
            target = self._numbers[each.slot - 1, : len(weights.numbers)]
            if self._stream is None:
                target.copy_(weights.numbers)
                continue
            with torch.cuda.stream(self._stream):
                target.copy_(weights.numbers, non_blocking=True)
        if plan.lora_loads and self._stream is not None:
            self._filled = self._stream.record_event()

    def adapts(self, batch: Batch) -> bool:
        """True if a row of the batch that decodes has an adapter; the arena then says which have which."""
        if batch is not self._batch:
            found = self._describe(((row, 1) for row in batch.places), many=False)
            self._batch, self._is_adapted = batch, bool(found)
        return self._is_adapted

    def describe(self, chunks: Iterable[Chunk], batch: Batch) -> int:
        """Write who has which adapter in a step with chunks; returns the number of groups."""
        rows = [(each.row, each.length) for each in chunks]
        return self._describe((*rows, *((row, 1) for row in batch.places)), many=True)

    def _describe(self, rows: Iterable[tuple[int, int]], *, many: bool) -> int:
        runs, first = [], 0
        for row, count in rows:
            runs.append((self._rows.get(row, 0), first, count))
            first += count
        groups, order = make_groups(runs, tile_of(many=many, invariant=self.invariant))
        if groups:
            kind = "chunk" if many else "batch"
            capacity = len(self._groups(many=many))
            numbers = [number for group in groups for number in group]
            self._arena.write(f"lora_{kind}_groups", numbers + [0] * (3 * capacity - len(numbers)))
            self._arena.write(f"lora_{kind}_order", order)
        return len(groups)

    def _groups(self, *, many: bool) -> Tensor:
        return self._arena.sections["lora_chunk_groups" if many else "lora_batch_groups"]

    def of_batch(self, places: int, *, pdl: bool) -> StepLoras:
        """The adapters of a batch of so many places."""
        count = most_groups(places, self._num_slots, tile_of(many=False, invariant=self.invariant))
        return StepLoras(self, self._groups(many=False)[:count], many=False, pdl=pdl)

    def of_chunks(self, groups: int) -> StepLoras:
        """The adapters of a step with chunks, whose tokens are in so many groups."""
        return StepLoras(self, self._groups(many=True)[:groups], many=True, pdl=False)

    def add(self, x: Tensor, linear: Linear, out: Tensor, groups: Tensor, *, many: bool, pdl: bool) -> None:
        """Add to a product [T, N] of x [T, K] what the tokens' adapters make of x."""
        product = self.products.get(linear)
        if product is None:  # the head
            return
        splits = splits_of(self.host.layout.sites[linear], many=many, invariant=self.invariant)
        shape = (splits, self._most[many], product.num_parts * self.rank)
        add_low_rank(
            x,
            out,
            Slots(self._numbers, self._arena.sections["lora_ranks"]),
            product,
            groups=groups,
            order=self._arena.sections["lora_chunk_order" if many else "lora_batch_order"],
            shrunk=self._shrunk[: shape[0] * shape[1] * shape[2]].view(shape),
            tile=tile_of(many=many, invariant=self.invariant),
            splits=splits,
            pdl=pdl,
        )


@attrs.frozen(eq=False)
class StepLoras:
    """Fulfils `layers.part.LowRank` for one step."""

    loras: DeviceLoras
    groups: Tensor
    many: bool
    pdl: bool

    def add(self, x: Tensor, linear: Linear, product: Tensor, /) -> None:
        self.loras.add(x, linear, product, self.groups, many=self.many, pdl=self.pdl)
