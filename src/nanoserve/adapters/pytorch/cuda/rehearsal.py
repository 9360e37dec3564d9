"""Launches, before serving, every kernel that serving can meet, without effect on any row."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nanoserve.adapters.pytorch.cuda.arena import Arena
from nanoserve.adapters.pytorch.cuda.chains import Chains
from nanoserve.adapters.pytorch.cuda.chunks import describe
from nanoserve.adapters.pytorch.cuda.decoding import Decoding, bucket_of
from nanoserve.adapters.pytorch.cuda.drawing import Drawing
from nanoserve.ports.step import Chunk


def rehearse(
    batch_sizes: Sequence[int],
    chains: Chains,
    arena: Arena,
    decoding: Decoding,
    drawing: Drawing,
    *,
    tile_queries: int,
) -> None:
    """Steps of these sizes of batch over padded places, alone and beside a prompt's chunk; `chains` may be brief."""
    most = arena.sizes.max_num_seqs
    sizes = sorted({bucket_of(size, most) for size in batch_sizes}, reverse=True)
    for size in sizes:
        for splits in decoding.every_splits(size):
            decoding.rehearse((size, splits, True))
    tokens = _describe_a_chunk(arena, tile_queries)
    sink_places = torch.full_like(arena.places, arena.sink_row)
    for size in sizes:
        for splits in decoding.every_splits(size):
            hidden = chains.mixed(
                tokens, 1, min(size, arena.sizes.max_num_batched_tokens - tokens), splits=splits
            )
        logits = chains.chosen_logits(chains.choose(hidden, size))
        for shaped in (logits, logits.float()):  # penalties and biases make float32
            drawing.draw(shaped, sink_places[:size], pdl=False)
            drawing.note_draw()


def _describe_a_chunk(arena: Arena, tile_queries: int) -> int:
    """Write a chunk of the sink row into the arena; returns its number of tokens."""
    sizes = arena.sizes
    tokens = max(1, min(tile_queries, sizes.max_model_len, sizes.max_num_batched_tokens - 1))
    describe(arena, (Chunk(arena.sink_row, 0, tokens, samples=False),), None, tile_queries)
    arena.write("logits_indices", [0] * sizes.max_num_seqs)
    arena.flush()
    return tokens
