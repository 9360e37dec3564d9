"""The cuts of attention: chunks of prompts into tiles of queries, and the data of one program at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

SHARED_MEMORY: Final = 232_448
"""Bytes of shared memory a program may use on compute capability 9.0; 8.0 has 166,912, and 8.6 and 8.9 have 101,376."""


class BlockSizes(NamedTuple):
    """The work of one program at a time.

    Attributes:
        rows: rows of the score matrix, one per query and head that a program has; a power of two, at least 16.
        keys: columns of the score matrix, tokens of the cache; a power of two, at least 16. The same at any time for
            the same position if outputs shall be bitwise the same.
        warps: warps of a program.
        stages: depth of the software pipeline over the keys.
    """

    rows: int
    keys: int
    warps: int
    stages: int


ROLES: Final = BlockSizes(128, 128, 4, 2)
"""Sizes of programs whose warps have three roles, with heads of 128 elements: as many rows as others, so that both take the same tiles."""


def make_tiles(chunks: Sequence[tuple[int, int, int, int]], queries: int) -> list[tuple[int, int, int, int]]:
    """Cut prefill chunks into the tiles that attention of prompts takes.

    The tiles with most keys come first, so that none of them is left to the end; those of one chunk stay together, as
    they read the same cache.

    Args:
        chunks: (row, position of the first token, number of tokens, index of the first token in the step) each.
        queries: most queries of a tile, from `queries_per_tile`.

    Returns:
        (row, index of the first query in the step, number of queries, position of the first query) each.
    """
    tiles: list[tuple[int, int, int, int]] = []
    for row, start, length, token in sorted(chunks, key=_end, reverse=True):
        last = (length - 1) // queries * queries
        tiles.append((row, token + last, length - last, start + last))
        tiles.extend(
            (row, token + offset, queries, start + offset) for offset in range(last - queries, -1, -queries)
        )
    return tiles


def _end(chunk: tuple[int, int, int, int]) -> int:
    return chunk[1] + chunk[2]
