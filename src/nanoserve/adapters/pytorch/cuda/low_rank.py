"""Adapters on a GPU: the slots that plans fill, and their addition to the products of a step.

A slot is filled by one copy from pinned host memory, on a stream of its own. The steps that use it come later than the step that fills it, and
wait for the copy alone. The tokens' slots are written into the arena when a batch changes, so a steady step writes nothing, and with each
step of chunks; the sizes of launches depend on the step's size alone, so that one graph serves all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.arena import Arena, Shapes
from nanoserve.adapters.pytorch.cuda.batches import EMPTY, Batch
from nanoserve.adapters.pytorch.cuda.chunks import ChunkStep
from nanoserve.adapters.pytorch.cuda.many_rows import ManyRows
from nanoserve.adapters.pytorch.linear import Linear
from nanoserve.adapters.pytorch.lora.layout import LoraWeights, padded_rank
from nanoserve.adapters.pytorch.lora.store import HostLoras
from nanoserve.kernels.linear.low_rank.launch import Adapters, Delta, Product, shrink
from nanoserve.kernels.linear.low_rank.tuning import (
    ITEM,
    Description,
    describe,
    most_items,
    most_partials,
    most_units,
    shrink_ways,
    slice_count,
)
from nanoserve.kernels.linear.tuning import MAX_SKINNY_M
from nanoserve.ports.engine_facts import EngineSizes
from nanoserve.ports.step import Chunk, StepPlan


def lora_sections(sizes: EngineSizes) -> Shapes:
    """Sections of the arena, for rows that decode and for steps with chunks: see `kernels.linear.low_rank.launch.Adapters`."""
    if not sizes.max_loras:
        return {}
    shapes: dict[str, tuple[int, ...]] = {}
    for kind, tokens in (("batch", sizes.max_num_seqs), ("chunk", sizes.max_num_batched_tokens)):
        most = tokens, sizes.max_loras, padded_rank(sizes.max_lora_rank)
        shapes[f"lora_{kind}_units"] = (most_units(*most[:2]), ITEM)
        shapes[f"lora_{kind}_items"] = (most_items(*most), ITEM)
        shapes[f"lora_{kind}_order"] = shapes[f"lora_{kind}_slots"] = (tokens,)
    return shapes


Shrink = Callable[[Tensor, Linear, Tensor | None], Delta | None]
"""Begins the addition of a step's adapters to a product of x [T, K] with a linear layer, or of x times a norm's weight; None for the head."""


class DeviceLoras:
    """The slots of a device.

    Attributes:
        host: adapters in host memory.
        rank: the largest that a slot holds, padded.
        many: whether the bits of a token's delta depend on no other token is as it is there.
    """

    def __init__(self, host: HostLoras, arena: Arena, many: ManyRows, *, dtype: torch.dtype) -> None:
        sizes, device = arena.sizes, arena.lengths.device
        self.host, self.rank, self.many = host, padded_rank(sizes.max_lora_rank), many
        self._arena, self._num_slots = arena, sizes.max_loras
        layout = host.layout
        self._numbers = torch.zeros(sizes.max_loras, self.rank * layout.size, dtype=dtype, device=device)
        parts: dict[Any, Tensor] = {}
        for runs in {site.runs for site in layout.sites.values() if site.num_parts > 1}:
            numbers = [part for first, end, part in runs for _ in range(first, end)]
            parts[runs] = torch.tensor(numbers, dtype=torch.int32, device=device)
        self.products = {
            linear: Product(site.start_a, site.start_b, tuple(end for _, end, _ in runs), parts.get(runs))
            for linear, site in layout.sites.items()
            for runs in [site.runs]
        }
        widest = max(site.num_parts for site in layout.sites.values()) * self.rank
        tokens = max(sizes.max_num_seqs, sizes.max_num_batched_tokens)
        self._shrunk = torch.empty(widest * most_partials(tokens), dtype=torch.float32, device=device)
        longest = max(site.out_features for site in layout.sites.values())
        self._deltas = torch.empty(MAX_SKINNY_M * longest, dtype=dtype, device=device)
        self._ready = torch.zeros(1, dtype=torch.int32, device=device)
        self._rows, self._ranks = dict[int, int](), dict[int, int]()
        self._batch, self._is_adapted = EMPTY, False
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._filled: Any = None
        self._queued = list[tuple[Any, LoraWeights]]()  # copies that may not be over

    def await_slots(self) -> None:
        """Let kernels that are queued from now on see the slots that earlier plans have filled."""
        if self._filled is not None:
            torch.cuda.current_stream().wait_event(self._filled)
            self._filled = None

    def apply(self, plan: StepPlan) -> None:
        """Note the slots of rows, and fill those of the plan; applying a plan twice is applying it once."""
        for row in plan.released:
            self._rows.pop(row, None)
        self._rows |= {each.row: each.lora_slot for each in plan.admitted}
        self._queued = [each for each in self._queued if not each[0].query()]
        for each in plan.lora_loads:
            weights = self.host[each.digest]
            self._ranks[each.slot] = weights.rank
            with torch.cuda.stream(self._stream):
                self._numbers[each.slot - 1][: len(weights.numbers)].copy_(weights.numbers, non_blocking=True)
            if self._stream is not None:
                self._filled = self._stream.record_event()
                self._queued.append((self._filled, weights))

    def adapts(self, batch: Batch) -> bool:
        """True if a row of the batch that decodes has an adapter; the arena then says which have which."""
        if batch is not self._batch:
            rest = -1, self._arena.sizes.max_num_seqs - len(batch.places)
            self._is_adapted = bool(self._describe("batch", [*((row, 1) for row in batch.places), rest]))
            self._batch = batch
        return self._is_adapted

    def mix(self, chunks: Iterable[Chunk], batch: Batch) -> bool:
        """True if a row of a step with chunks has an adapter."""
        return any(self._rows.get(row) for row in (*(each.row for each in chunks), *batch.places))

    def describe(self, chunks: Iterable[Chunk], step: ChunkStep) -> None:
        """Write who has which adapter in a step with chunks; the sink row has none."""
        rows, decoding = [(each.row, each.length) for each in chunks], [(row, 1) for row in step.batch.places]
        rest = -1, step.num_tokens - sum(length for _, length in rows)
        self._describe("chunk", [*rows, rest, *decoding, (-1, step.num_places - len(decoding))])

    def _describe(self, kind: str, rows: Iterable[tuple[int, int]]) -> int:
        made = describe(((self._rows.get(row, 0), count) for row, count in rows), self._ranks)
        if made.units[0]:
            for name, numbers in made._asdict().items():
                self._arena.write(f"lora_{kind}_{name}", numbers)
        return made.units[0]

    def ways(self, most: int) -> list[int]:
        """Numbers of tokens up to `most`, one for each way in which kernels are launched for them."""
        widths = sorted({site.in_features for site in self.host.layout.sites.values()})
        return shrink_ways(widths, most, invariant=self.many.is_invariant)

    def of(self, places: int | None = None, *, pdl: bool = False) -> Shrink:
        """The adapters of a batch of this many places, or of a step with chunks."""
        sections, kind = self._arena.sections, "chunk" if places is None else "batch"
        most = None if places is None else most_items(places, self._num_slots, self.rank)
        units, items, order, slots = (sections[f"lora_{kind}_{name}"] for name in Description._fields)
        adapters = Adapters(self._numbers, units, items[:most], order, slots)
        return functools.partial(self._shrink, adapters, pdl)

    def _shrink(
        self, adapters: Adapters, pdl: bool, x: Tensor, linear: Linear, norm_weight: Tensor | None
    ) -> Delta | None:
        product = self.products.get(linear)
        if product is None:
            return None
        tokens, width = x.shape
        slices = slice_count(tokens, width, invariant=self.many.is_invariant)
        shape = (slices, tokens, len(product.ends) * self.rank)
        shrunk = self._shrunk[: shape[0] * shape[1] * shape[2]].view(shape)
        delta = Delta(adapters, product, shrunk, self._ready, self._deltas, self.many.is_invariant)
        shrink(x, delta, norm_weight=norm_weight, pdl=pdl)
        return delta
