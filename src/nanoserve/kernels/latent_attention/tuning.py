"""How latent attention is cut into programs: splits of decoding rows, and the sizes of one program's work.

An entry is wide (576 elements in DeepSeek's models) and all heads share it, so that a program works on many heads at once
and holds few tokens. Sizes follow from the bytes of an entry and the shared memory; those of `WIDE` tokens were measured on an H200.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
import triton

from nanoserve.kernels.latent import padded
from nanoserve.kernels.tiles import ROLES, SHARED_MEMORY, BlockSizes

HEADS: Final = 16
"""Query heads of a decoding program: as many as a matrix product has rows at least."""
MAX_SPLITS: Final = 64
"""Splits of a row at most."""
MAX_TOKENS_PER_SPLIT: Final = 16_384
"""A row is split, whatever the batch, before one program walks more tokens than this while others have ended.

Sums of splits are wide here, so that more of them would take gigabytes for many rows."""
TILE_BYTES: Final = 40 * 1024
"""Entries that a program holds at a time where the tensor cores read them through registers."""
WIDE: Final = 64
"""Tokens that a program walks at a time where they are the rows of asynchronous instructions."""
CHUNK: Final = 64
"""Columns of latents in a piece."""
ALONE: Final = 132
"""Programs up to which each has a multiprocessor of an H100 or H200 to itself, and room for one tile more."""
LEAST_VISITS: Final = 8
"""Visits to keys that tiles have in the mean from which warps of three roles serve them: in the first and the last of a tile its products wait for one another."""
LEAST_WORK: Final = 64
"""Visits of a multiprocessor in a launch from which they do: 0.1 ms, which describing to the copy engine what it fetches takes the host."""
_MARGIN: Final = 10 * 1024
"""Bytes of shared memory for what goes from warp to warp."""


def padded_width(latent_dim: int, rope_dim: int) -> int:
    """Elements of an entry as a program holds it: both parts padded to powers of two."""
    return padded(latent_dim) + padded(rope_dim)


def decode_block(
    width: int,
    dtype: torch.dtype,
    shared_memory: int = SHARED_MEMORY,
    *,
    wgmma: bool = True,
    programs: int = 1,
) -> BlockSizes:
    """The sizes for one decoding token per row.

    Args:
        width: from `padded_width`.
        dtype: of queries and cache.
        shared_memory: bytes of it that one program may use.
        wgmma: whether the device has instructions that read both factors from shared memory.
        programs: how many there are, or 1 if rows are split: few enough then.
    """
    entry = width * dtype.itemsize
    # n stages take the room of n - 1 tiles.
    half = shared_memory // 2 - HEADS * entry
    if wgmma and dtype.itemsize == 2 and half - _MARGIN >= WIDE * entry:
        room = half - _MARGIN + (shared_memory // 2 if programs <= ALONE else 0)
        return BlockSizes(HEADS, WIDE, 4, min(3, 1 + room // (WIDE * entry)))
    tokens = 16 if 32 * entry > TILE_BYTES else 32
    return BlockSizes(HEADS, tokens, 4, max(1, min(3, 1 + half // (tokens * entry))))


def prefill_block(width: int, dtype: torch.dtype, shared_memory: int = SHARED_MEMORY) -> BlockSizes:
    """The sizes for tiles of queries; arguments as for `decode_block`."""
    entry = width * dtype.itemsize
    rows = 64 if dtype.itemsize == 2 and 96 * entry <= shared_memory else 16
    tokens = 16 if dtype.itemsize == 4 or (rows + 2 * 32) * entry > shared_memory else 32
    # One tile less than there is room for: the weights and the transposed tile take some as well.
    stages = (shared_memory - rows * entry) // (tokens * entry) - 1
    return BlockSizes(rows, tokens, 8 if rows == 64 else 4, max(1, min(2, stages)))


def packed_heads(num_heads: int, rows: int) -> int:
    """The number of heads of a query that share a program: the largest power of two that divides theirs and fits."""
    return min(num_heads & -num_heads, rows)


def queries_per_tile(num_heads: int, rows: int) -> int:
    """The most queries of a tile."""
    return rows // packed_heads(num_heads, rows)


def choose_splits(batch: int, num_heads: int, max_context: int, num_sms: int, tokens: int = WIDE) -> int:
    """The number of splits of each row, a power of two.

    Enough that all multiprocessors have work, two programs each if these hold small tiles, and that no program walks more than MAX_TOKENS_PER_SPLIT tokens;
    no more than leaves each 64 tokens or more.

    Args:
        batch: places of the batch.
        num_heads: query heads (on this device).
        max_context: tokens of the longest row that the choice is for.
        num_sms: multiprocessors of the device.
        tokens: that a program walks at a time, see `decode_block`.
    """
    programs = batch * triton.cdiv(num_heads, HEADS)
    filling = max(1, (1 if tokens >= WIDE else 2) * num_sms // programs)
    useful = triton.next_power_of_2(triton.cdiv(max_context, 64))
    needed = triton.next_power_of_2(triton.cdiv(max_context, MAX_TOKENS_PER_SPLIT))
    return min(MAX_SPLITS, max(needed, min(1 << (filling.bit_length() - 1), useful)))


class Span(NamedTuple):
    """Keys of a row at positions [begin, end), expanded from `place` on; none if both are equal."""

    row: int
    begin: int
    end: int
    place: int


def expanded_block(
    rope_dim: int, nope_dim: int, value_dim: int, dtype: torch.dtype, shared_memory: int = SHARED_MEMORY
) -> BlockSizes:
    """The sizes for keys and values of these elements, which are padded to powers of two."""
    key, value = padded(nope_dim) + padded(rope_dim), padded(value_dim)
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
    pairs = _count_pairs(chunks)
    expanded = context * made + pairs * (nope_dim + rope_dim + value_dim)
    return expanded < tokens * made + pairs * (2 * latent_dim + rope_dim)


def is_for_roles(
    chunks: Sequence[tuple[int, int]], rounds: int, *, num_heads: int, multiprocessors: int
) -> bool:
    """True if warps of three roles are faster for chunks as in `is_cheaper`: their tiles are long, and each round is work enough."""
    tiles = sum(triton.cdiv(length, ROLES.rows) for _, length in chunks)
    visits = _count_pairs(chunks) // (ROLES.rows * ROLES.keys)
    enough = LEAST_WORK * rounds * multiprocessors
    return visits >= LEAST_VISITS * tiles and visits * num_heads >= enough


def _count_pairs(chunks: Sequence[tuple[int, int]]) -> int:
    """Queries and the keys that each sees."""
    return sum(length * start + length * (length + 1) // 2 for start, length in chunks)


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
