"""Everything the host tells the device about rows, in one int32 tensor, so that a step's changes are one upload.

Tokens, lengths, block tables and sampling settings are sections of the arena; floats are stored as their bits. The host
collects writes, and `flush` sends them with one kernel, which scatters them out of pinned memory. A
step in which nothing changed uploads nothing.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from nanoserve.adapters.pytorch.cuda.transfers import Uploads

ALIGNMENT = 32
"""Sections start at multiples of 128 bytes: Triton compiles another variant for pointers that are not aligned."""


@attrs.frozen(kw_only=True)
class Capacity:
    """How much the device rows hold. Row `max_num_seqs` is the sink, to which padded places of a batch point.

    Attributes:
        max_tokens: the most tokens computed in one step.
        max_tiles: the most tiles of prefill attention in one step.
        ring_slots: how many steps' tokens are kept on the device for the host to fetch.
    """

    max_num_seqs: int
    max_model_len: int
    block_size: int
    num_groups: int
    max_tokens: int
    max_tiles: int
    ring_slots: int

    @property
    def sink_row(self) -> int:
        """The row of padded places: one token long, all its blocks are the sink block."""
        return self.max_num_seqs

    @property
    def max_blocks(self) -> int:
        """Entries of one row's block table."""
        return -(-self.max_model_len // self.block_size)


@attrs.frozen(eq=False)
class Section:
    """A part of the arena: its view, and where it starts."""

    view: Tensor
    start: int
    row_size: int


class Arena:
    """Device rows 0 to max_num_seqs, the last one the sink, and the lists that describe one step.

    Attributes:
        tokens: int32 [rows, max_model_len + 1]; what lies beyond a row's length means nothing.
        lengths: int32 [rows], tokens of each row, the newest included; advanced by the device.
        num_prompt_tokens: int32 [rows].
        block_tables: per cache group, int32 [rows, max_blocks].
        temperature, top_p, min_p: float32 [rows]; top_k: int32 [rows]; seeds: int32 [rows, 2], low word first.
        ring_position: int32 [1], counts steps that sampled.
        places: int32 [max_num_seqs], the rows of a batch that decodes, padded with the sink row.
        sampling_places: int32 [max_num_seqs], the rows of a mixed step that sample.
        logits_indices: int32 [max_num_seqs], which tokens of a mixed step those are.
        token_rows, positions: int32 [max_tokens], of the chunks' tokens.
        tiles: int32 [max_tiles, 4], see `kernels.prefill_attention`.
        chosen_tiles: int32 [max_num_seqs, 4], one for the last token of each chunk that samples.
    """

    def __init__(self, capacity: Capacity, uploads: Uploads) -> None:
        self.capacity = capacity
        self._uploads = uploads
        rows, seqs = capacity.max_num_seqs + 1, capacity.max_num_seqs
        shapes: dict[str, tuple[int, ...]] = {
            "tokens": (rows, capacity.max_model_len + 1),
            "lengths": (rows,),
            "num_prompt_tokens": (rows,),
            "temperature": (rows,),
            "top_k": (rows,),
            "top_p": (rows,),
            "min_p": (rows,),
            "seeds": (rows, 2),
            "ring_position": (1,),
            "places": (seqs,),
            "sampling_places": (seqs,),
            "logits_indices": (seqs,),
            "token_rows": (capacity.max_tokens,),
            "positions": (capacity.max_tokens,),
            "tiles": (capacity.max_tiles, 4),
            "chosen_tiles": (seqs, 4),
            **{f"table{group}": (rows, capacity.max_blocks) for group in range(capacity.num_groups)},
        }
        starts, size = _layout(shapes)
        self._storage = torch.zeros(size, dtype=torch.int32, device=uploads.device)
        self._sections = {
            name: Section(
                self._storage[start : start + math.prod(shapes[name])].view(shapes[name]),
                start,
                math.prod(shapes[name][1:]),
            )
            for name, start in starts.items()
        }
        self._table_starts = [starts[f"table{group}"] for group in range(capacity.num_groups)]
        self._runs: list[tuple[int, Sequence[int]]] = []
        self._view_sections()
        self.lengths[capacity.sink_row] = 1
        self.places.fill_(capacity.sink_row)
        self.sampling_places.fill_(capacity.sink_row)

    def _view_sections(self) -> None:
        view = {name: section.view for name, section in self._sections.items()}
        self.tokens, self.lengths, self.num_prompt_tokens = (
            view["tokens"],
            view["lengths"],
            view["num_prompt_tokens"],
        )
        self.temperature = view["temperature"].view(torch.float32)
        self.top_p, self.min_p = view["top_p"].view(torch.float32), view["min_p"].view(torch.float32)
        self.top_k, self.seeds = view["top_k"], view["seeds"]
        self.ring_position = view["ring_position"]
        self.places, self.sampling_places = view["places"], view["sampling_places"]
        self.logits_indices = view["logits_indices"]
        self.token_rows, self.positions = view["token_rows"], view["positions"]
        self.tiles, self.chosen_tiles = view["tiles"], view["chosen_tiles"]
        self.block_tables = [view[f"table{group}"] for group in range(self.capacity.num_groups)]

    def write(self, section: str, values: Sequence[int], *, row: int = 0) -> None:
        """Write integers from the start of a section or of one of its rows on, with the next `flush`; writes before one flush must not overlap."""
        found = self._sections[section]
        self._runs.append((found.start + row * found.row_size, values))

    def write_table(self, group: int, row: int, start: int, block_ids: Sequence[int]) -> None:
        """As `write`, into a row's block table of a cache group, from logical block `start` on."""
        self._runs.append((self._table_starts[group] + row * self.capacity.max_blocks + start, block_ids))

    def flush(self) -> None:
        """Send the collected writes; later work on the stream sees them."""
        if self._runs:
            self._uploads.scatter(self._storage, self._runs)
            self._runs = []

    def forget(self) -> None:
        """Drop what was collected and not sent."""
        self._runs = []


def bits(value: float) -> int:
    """A float32 as the int32 of the same bits."""
    (word,) = struct.unpack("<i", struct.pack("<f", value))
    return int(word)


def _layout(shapes: dict[str, tuple[int, ...]]) -> tuple[dict[str, int], int]:
    starts, size = {}, 0
    for name, shape in shapes.items():
        starts[name] = size
        size += -(-math.prod(shape) // ALIGNMENT) * ALIGNMENT
    return starts, size
