"""Describes a step's prompt chunks to the device: each token's row and position, attention's tiles, who samples."""

from __future__ import annotations

from array import array

import attrs

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.batches import EMPTY, Batch
from nanoserve.adapters.pytorch.cuda.expansion import Expansion
from nanoserve.kernels.tiles import make_tiles
from nanoserve.ports.step import Chunk


@attrs.frozen(eq=False)
class ChunkStep:
    """What the host needs to launch a mixed step.

    Attributes:
        rounds: in which latents are expanded, tokens together and of the longest span; none where they are not.
        finished: rows of the chunks that sample, in order.
        sampling: the rows that sample, chunks' first, then the decoding places.
    """

    num_chunk_tokens: int
    num_chunks: int
    num_tiles: int
    rounds: tuple[tuple[int, int], ...]
    batch: Batch
    finished: tuple[int, ...]
    sampling: tuple[int, ...]


def describe(
    arena: Arena,
    chunks: tuple[Chunk, ...],
    batch: Batch | None,
    block_m: int,
    expansion: Expansion | None = None,
) -> ChunkStep:
    """Write a mixed step's description into the arena."""
    batch = batch or EMPTY
    rows, positions = array("i"), array("i")
    spans: list[tuple[int, int, int, int]] = []
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
    rounds = [] if expansion is None else expansion.rounds([span[:3] for span in spans])
    if expansion is not None and rounds:
        arena.write("expansions", [number for cut in rounds for span in cut for number in span])
        numbered = [(number, *span[1:]) for number, span in enumerate(spans)]
        tiles = make_tiles(numbered, expansion.tile_queries)
    else:
        tiles = make_tiles(spans, block_m)
    finished = tuple(chunk.row for chunk in chunks if chunk.samples)
    sampling = finished + batch.places
    arena.write("token_rows", rows)
    arena.write("positions", positions)
    arena.write("tiles", [number for tile in tiles for number in tile])
    arena.write("chosen_tiles", last_tiles)
    arena.write(
        "spans", [number for row, start, length, token in spans for number in (row, token, length, start)]
    )
    if sampling:
        arena.write("sampling_places", sampling)
        arena.write("logits_indices", last + list(range(len(rows), len(rows) + len(batch.places))))
    sizes = tuple(
        (sum(span.end - span.begin for span in cut), max(span.end - span.begin for span in cut))
        for cut in rounds
    )
    return ChunkStep(len(rows), len(chunks), len(tiles), sizes, batch, finished, sampling)
