"""How expanded attention is cut: the keys of chunks into rounds that fit into memory, and the sizes of one program's work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

SHARED_MEMORY: Final = 232_448
"""Bytes of shared memory a program may use on compute capability 9.0; 8.0 has 166,912, and 8.6 and 8.9 have 101,376."""


class BlockSizes(NamedTuple):
    """The work of one program at a time.

    Attributes:
        rows: queries of a tile at most; a power of two, at least 16.
        keys: columns of the score matrix; a power of two, at least 16.
        warps: warps of a program.
        stages: depth of the software pipeline over the keys.
    """

    rows: int
    keys: int
    warps: int
    stages: int


class Span(NamedTuple):
    """Keys of a row at positions [begin, end), expanded from `place` on; none where both are equal."""

    row: int
    begin: int
    end: int
    place: int


def choose_block(key: int, value: int, dtype: torch.dtype, shared_memory: int = SHARED_MEMORY) -> BlockSizes:
    """The sizes for keys and values of so many elements, padded to powers of two each."""
    blocks = BlockSizes(32, 16, 8, 2) if dtype == torch.float32 else BlockSizes(128, 64, 8, 3)
    room = shared_memory - blocks.rows * key * dtype.itemsize
    stages = room // (blocks.keys * (key + value) * dtype.itemsize)
    return blocks._replace(stages=max(1, min(blocks.stages, stages)))


def is_cheaper(
    chunks: Sequence[tuple[int, int]], *, latent_dim: int, rope_dim: int, nope_dim: int, value_dim: int
) -> bool:
    """True if expanding takes fewer multiplications than absorbing, for chunks of (first position, number of queries)."""
    made = latent_dim * (nope_dim + value_dim)
    tokens = sum(length for _, length in chunks)
    context = sum(start + length for start, length in chunks)
    pairs = sum(length * start + length * (length + 1) // 2 for start, length in chunks)
    expanded = context * made + pairs * (nope_dim + rope_dim + value_dim)
    return expanded < tokens * made + pairs * (2 * latent_dim + rope_dim)


def cut_rounds(rows: Sequence[tuple[int, int]], room: int, keys: int) -> list[list[Span]]:
    """Rounds of one span for each (row, number of keys), of at most `room` keys together.

    Spans begin at multiples of `keys`, where a program's visits begin, so that a cut changes no bit. `room` is `keys` at least.
    """
    rounds: list[list[Span]] = []
    done = [0] * len(rows)
    while any(begin < end for begin, (_, end) in zip(done, rows, strict=True)):
        spans, place = [], 0
        for index, (row, end) in enumerate(rows):
            begin, left = done[index], room - place
            done[index] = end if end - begin <= left else begin + left // keys * keys
            spans.append(Span(row, begin, done[index], place))
            place += done[index] - begin
        rounds.append(spans)
    return rounds
