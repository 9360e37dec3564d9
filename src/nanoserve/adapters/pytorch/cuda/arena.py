"""The device's state of all rows in one int32 tensor, so that a step's changes are one upload.

Tokens, lengths, block tables and sampling settings are sections of the arena; floats are stored as their bits. The host collects writes, and `flush` sends them
with one kernel, which scatters them out of pinned memory. A step in which nothing changed uploads nothing.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.transfers import Uploads
from nanoserve.adapters.pytorch.sampling.row_settings import NUMBERS, DeviceSettings
from nanoserve.ports.engine_facts import EngineSizes

ALIGNMENT = 32
"""Sections start at multiples of 128 bytes: Triton compiles another variant for pointers that are not aligned."""
GIVEN, NO_DRAFT = 2, -1
WINDOW = 32
"""Places of a row that verifies what it has decoded: its newest verified token, and as many others as may stand behind that."""
Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of sections, by name."""


class Arena:
    """Device rows 0 to max_num_seqs, the last one the sink, and the lists that describe one step.

    Args:
        sizes: of the engine; `groups`, the layers of each cache group.
        more: further sections, in which mixers describe a step's chunks.
        uploads: how writes are sent.

    Attributes:
        sink_row: the row of padded places: one token long, all its blocks are the sink block.
        tokens: int32 [rows, max_model_len + max(max_width, WINDOW)]; what lies beyond a row's length are drafts or means nothing.
        lengths: int32 [rows], tokens of each row, the newest included; advanced by the device.
        num_prompt_tokens: int32 [rows].
        limits: int32 [rows], tokens that each row may come to have.
        takes_drafts: int32 [rows], 0 for a row that has none, `GIVEN` for one whose drafts the host writes.
        block_tables: of each layer, that of its cache group, int32 [rows, max_blocks].
        settings: of the draw, as arguments of `sample_and_append` by their names: int32 or float32 [rows] each.
        seeds: int32 [rows, 2], low word first.
        ring_position: int32 [1], counts steps that sampled.
        places: int32 [max_num_seqs], the rows of a batch that decodes, padded with the sink row.
        sampling_places: int32 [max_num_seqs], the rows of a mixed step that sample.
        logits_indices: int32 [max_num_seqs], which tokens of a mixed step those are.
        token_rows, positions: int32 [max_tokens], of the chunks' tokens.
        chosen_tiles: int32 [max_num_seqs, 4], one for the last token of each chunk that samples, see `kernels.paged_attention`.
        copies: int32 [num_groups, 2 max_num_seqs, 2], sources and targets: each row may begin with a copy and be kept in one.
        spans: int32 [max_num_seqs, 4], of each chunk its row, first token, number of tokens and first position.
        sections: all of them by name.
    """

    tokens: Tensor
    lengths: Tensor
    num_prompt_tokens: Tensor
    limits: Tensor
    takes_drafts: Tensor
    seeds: Tensor
    ring_position: Tensor
    places: Tensor
    sampling_places: Tensor
    logits_indices: Tensor
    token_rows: Tensor
    positions: Tensor
    chosen_tiles: Tensor
    copies: Tensor
    spans: Tensor

    def __init__(
        self, sizes: EngineSizes, groups: Sequence[Sequence[int]], more: Shapes, uploads: Uploads
    ) -> None:
        self.sizes, self.sink_row = sizes, sizes.max_num_seqs
        self._uploads = uploads
        rows, seqs, num_groups = sizes.max_num_seqs + 1, sizes.max_num_seqs, len(groups)
        shapes: Shapes = {
            "tokens": (rows, sizes.max_model_len + max(sizes.max_width, WINDOW)),
            "lengths": (rows,),
            "num_prompt_tokens": (rows,),
            "limits": (rows,),
            "takes_drafts": (rows,),
            **dict.fromkeys(NUMBERS, (rows,)),
            "seeds": (rows, 2),
            "ring_position": (1,),
            "places": (seqs,),
            "sampling_places": (seqs,),
            "logits_indices": (seqs,),
            "token_rows": (sizes.max_num_batched_tokens,),
            "positions": (sizes.max_num_batched_tokens,),
            **more,
            "chosen_tiles": (seqs, 4),
            "copies": (num_groups, 2 * seqs, 2),
            "spans": (seqs, 4),
            **{f"table{group}": (rows, sizes.max_table) for group in range(num_groups)},
        }
        starts, size = _layout(shapes)
        self._storage = torch.zeros(size, dtype=torch.int32, device=uploads.device)
        self.sections: Mapping[str, Tensor] = {
            name: self._storage[start : start + math.prod(shapes[name])].view(shapes[name])
            for name, start in starts.items()
        }
        for name in set(shapes) & set(Arena.__annotations__):
            setattr(self, name, self.sections[name])
        self.settings = {
            name: self.sections[name].view(torch.float32) if kind is float else self.sections[name]
            for name, kind in NUMBERS.items()
        }
        self.block_tables: Mapping[int, Tensor] = {
            layer: self.sections[f"table{number}"] for number, layers in enumerate(groups) for layer in layers
        }
        self._places = {
            name: (start, math.prod(shapes[name][1:]), math.prod(shapes[name]))
            for name, start in starts.items()
        }
        self._table_starts = [starts[f"table{group}"] for group in range(num_groups)]
        self._runs: list[tuple[int, Sequence[int]]] = []
        self.lengths[self.sink_row] = self.limits[self.sink_row] = 1
        self.places.fill_(self.sink_row)
        self.sampling_places.fill_(self.sink_row)

    def write(self, section: str, values: Sequence[int], *, row: int = 0, column: int = 0) -> None:
        """Write integers into a section or one of its rows, with the next `flush`; writes before one flush must not overlap. Raises `IndexError` if they do not fit."""
        start, row_size, size = self._places[section]
        first = row * row_size + column
        if first + len(values) > size:
            raise IndexError(f"{section} has {size} places, not {first + len(values)}")
        self._runs.append((start + first, values))

    def write_settings(self, settings: DeviceSettings, row: int) -> None:
        """As `write`, all that the draw of a row needs."""
        for name, kind in NUMBERS.items():
            value = getattr(settings, name)
            self.write(name, (_bits(value) if kind is float else value,), row=row)
        self.write("seeds", (settings.seed_low, settings.seed_high), row=row)

    def write_table(self, group: int, row: int, start: int, block_ids: Sequence[int]) -> None:
        """As `write`, into a row's block table of a cache group, from logical block `start` on."""
        self._runs.append((self._table_starts[group] + row * self.sizes.max_table + start, block_ids))

    def flush(self) -> None:
        """Send the collected writes; later work on the stream sees them."""
        if self._runs:
            self._uploads.scatter(self._storage, self._runs)
            self._runs = []

    def forget(self) -> None:
        """Drop collected writes that were not sent."""
        self._runs = []


class HeadArena:
    """The arena for the head's mixer, see `StepArena`: rows end at the head's position, and descriptions have names of their own."""

    PREFIX = "drafts_"

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.lengths, self.limits = arena.sections["ends"], arena.limits
        self.token_rows, self.positions, self.spans = arena.token_rows, arena.positions, arena.spans
        self.block_tables = arena.block_tables
        size = len(self.PREFIX)
        self.sections: Mapping[str, Tensor] = {
            name[size:]: each for name, each in arena.sections.items() if name.startswith(self.PREFIX)
        }

    def write(self, section: str, values: Sequence[int], /) -> None:
        self._arena.write(self.PREFIX + section, values)


def _bits(value: float) -> int:
    """A float32 as the int32 of the same bits."""
    (word,) = struct.unpack("<i", struct.pack("<f", value))
    return int(word)


def _layout(shapes: Shapes) -> tuple[dict[str, int], int]:
    starts, size = {}, 0
    for name, shape in shapes.items():
        starts[name] = size
        size += -(-math.prod(shape) // ALIGNMENT) * ALIGNMENT
    return starts, size
