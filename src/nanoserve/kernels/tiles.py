"""How chunks of prompts are cut into tiles of queries, each the work of one program."""

from __future__ import annotations

from collections.abc import Sequence


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
