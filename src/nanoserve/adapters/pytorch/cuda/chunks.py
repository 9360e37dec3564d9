"""Describes a step's prompt chunks to the device: each token's row and position, the mixers' tables, the sampling rows."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import Batch
from nanoserve.adapters.pytorch.cuda.mixers import GpuMixers
from nanoserve.adapters.pytorch.mixers.gpu_mixer import ChunkSpan, GpuMixer
from nanoserve.ports.step import Chunk


@attrs.frozen(eq=False)
class ChunkStep:
    """A mixed step as the host launches it.

    Attributes:
        num_tokens: of the chunks, those that fill them up included; `num_places`: that decode, too.
        plans: what each mixer has prepared.
        finished: rows of the chunks that sample, in order; those that verify what they have decoded are drawn apart (`windows.py`).
        sampling: the rows that sample, chunks' first, then the decoding places.
    """

    num_tokens: int
    num_places: int
    plans: Mapping[GpuMixer, Any]
    batch: Batch
    finished: tuple[int, ...]
    sampling: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...] | None:
        """For each row of the plan's `sampling_rows`, its place in `sampling`; None if they agree."""
        if self.batch.order is None:
            return None
        finished = len(self.finished)
        return *range(finished), *(finished + place for place in self.batch.order)


def describe(
    arena: Arena,
    mixers: GpuMixers,
    chunks: tuple[Chunk, ...],
    batch: Batch,
    way: int | None = None,
    *,
    padded: tuple[int, int, int, int] | None = None,
    pooled: Sequence[int] = (),
) -> ChunkStep:
    """Write a mixed step's description into the arena; a `way` to compute chunks is for rehearsals and invariant steps.

    `pooled` are tokens of chunks that are computed to the end beside those that get logits, which they follow. With `padded`, tokens of chunks, places that decode and chosen tokens are filled up to these numbers: with tokens of the
    sink row, with places of it, which are there already, and with the step's first token; there are at most this many chunks as the last says.
    """
    rows, positions = array("i"), array("i")
    spans: list[ChunkSpan] = []
    last: list[int] = []
    last_tiles: list[int] = []
    for chunk in chunks:
        spans.append((chunk.row, chunk.start, chunk.length, len(rows)))
        rows.extend(array("i", (chunk.row,)) * chunk.length)
        positions.extend(range(chunk.start, chunk.start + chunk.length))
        if chunk.samples and not chunk.unverified:
            last.append(len(rows) - 1)
            last_tiles += [chunk.row, len(rows) - 1, 1, positions[-1]]
    for token in pooled:
        last_tiles += [rows[token], token, 1, positions[token]]
    finished = tuple(chunk.row for chunk in chunks if chunk.samples and not chunk.unverified)
    sampling = finished + batch.places
    tokens, places, chosen, _ = padded or (len(rows), len(batch.places), len(sampling) + len(pooled), 0)
    rows.extend(array("i", (arena.sink_row,)) * (tokens - len(rows)))
    positions.extend(array("i", (0,)) * (tokens - len(positions)))
    # An empty tile computes nothing.
    last_tiles += [0] * (4 * chosen - len(last_tiles))
    # Decoding places follow the chunks' tokens in the step.
    indices = [*last, *range(tokens, tokens + len(batch.places)), *pooled]
    arena.write("token_rows", rows)
    arena.write("positions", positions)
    arena.write("chosen_tiles", last_tiles)
    arena.write(
        "spans", [number for row, start, length, token in spans for number in (row, token, length, start)]
    )
    if chosen or sampling:
        arena.write("sampling_places", sampling + (arena.sink_row,) * (chosen - len(sampling)))
    if indices:
        arena.write("logits_indices", indices + [0] * (chosen - len(indices)))
    plans = mixers.prepare(spans, way, None if padded is None else (tokens, padded[3]))
    return ChunkStep(tokens, places, plans, batch, finished, sampling)
