"""Describes a step's prompt chunks to the device: each token's row and position, what mixers prepare, who samples."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import attrs

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import EMPTY, Batch
from nanoserve.adapters.pytorch.cuda.mixers import GpuMixers
from nanoserve.adapters.pytorch.mixers.kind import ChunkSpan, GpuMixer
from nanoserve.ports.step import Chunk


@attrs.frozen(eq=False)
class ChunkStep:
    """What the host needs to launch a mixed step.

    Attributes:
        plans: what each mixer has prepared.
        finished: rows of the chunks that sample, in order.
        sampling: the rows that sample, chunks' first, then the decoding places.
    """

    num_tokens: int
    plans: Mapping[GpuMixer, Any]
    batch: Batch
    finished: tuple[int, ...]
    sampling: tuple[int, ...]


def describe(
    arena: Arena, mixers: GpuMixers, chunks: tuple[Chunk, ...], batch: Batch | None, way: int | None = None
) -> ChunkStep:
    """Write a mixed step's description into the arena; a `way` to compute chunks is for rehearsals."""
    batch = batch or EMPTY
    rows, positions = array("i"), array("i")
    spans: list[ChunkSpan] = []
    last: list[int] = []
    last_tiles: list[int] = []
    # Decoding places follow the chunks' tokens in the step, so a chunk's last token is counted from the step's start.
    for chunk in chunks:
        spans.append((chunk.row, chunk.start, chunk.length, len(rows)))
        rows.extend(array("i", (chunk.row,)) * chunk.length)
        positions.extend(range(chunk.start, chunk.start + chunk.length))
        if chunk.samples:
            last.append(len(rows) - 1)
            last_tiles += [chunk.row, len(rows) - 1, 1, positions[-1]]
    finished = tuple(chunk.row for chunk in chunks if chunk.samples)
    sampling = finished + batch.places
    arena.write("token_rows", rows)
    arena.write("positions", positions)
    arena.write("chosen_tiles", last_tiles)
    arena.write(
        "spans", [number for row, start, length, token in spans for number in (row, token, length, start)]
    )
    if sampling:
        arena.write("sampling_places", sampling)
        arena.write("logits_indices", last + list(range(len(rows), len(rows) + len(batch.places))))
    return ChunkStep(len(rows), mixers.prepare(spans, way), batch, finished, sampling)
